"""FSDP2: every rank keeps a shard of each parameter, of its gradient and of its optimizer states.

torch's ``fully_shard`` (2.13), block by block: a block's weights are gathered when it runs, forward and backward, and
its gradients are reduced and cut into shards as soon as its backward ends, after every micro batch, so that no whole
gradient outlives its block. A plan may keep whole ones over a window instead (``sync_each_batch``): less is sent, and
the model's size is held again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast, final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from scaling.engines.base import Engine, all_gather
from scaling.engines.gradient_norm import gradient_factor, is_finite, norm_in_fp64
from scaling.engines.optimizer import OptimizerSettings, make_optimizer, split_by_decay
from scaling.engines.state import (
    WEIGHT,
    Holder,
    StateSlice,
    buffer_slices,
    create_moments,
    flat,
    number_slice,
    tensor_states,
)
from scaling.meter import PhaseMeter
from scaling.number_formats import AUTOCAST
from scaling.ownership import Owned, fsdp2_owners, fsdp_parameters
from scaling.recompute import repeated_blocks
from strategies.decision import Decision
from strategies.job import Precision
from strategies.plan import OffloadDevice

GATHERED_IN_16_BITS: Final = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16} | AUTOCAST
"""Format of gathered weights and of the computation over fp32 shards; gradients are reduced in fp32."""


@final
class Fsdp2Engine(Engine):
    """A model under `fully_shard`. 16-bit precisions with fp32 masters keep the masters only, as shards."""

    def __init__(
        self,
        model: nn.Module,
        *,
        decision: Decision,
        settings: OptimizerSettings,
        device: torch.device,
        meter: PhaseMeter,
    ) -> None:
        super().__init__(model, job=decision.job, device=device, meter=meter)
        self._max_norm = decision.job.gradient_clipping
        self._sync_each_batch = decision.plan.sync_each_batch
        # What the forward pass computes with is what a 16-bit model is saved as; under autocast the weights are fp32.
        precision = decision.job.precision
        self._saved_format = GATHERED_IN_16_BITS[precision] if precision.has_master_weights else None
        _shard(model, decision, device_mesh.init_device_mesh(device.type, (self.data_parallel_size,)))
        self._parameters = [cast(DTensor, each) for each in model.parameters() if each.requires_grad]
        self._optimizer = make_optimizer(*split_by_decay(model, settings), settings, job=decision.job)

    @contextmanager
    def accumulate(self, *, is_last: bool) -> Iterator[None]:
        if not self._sync_each_batch:
            cast(FSDPModule, self.model).set_requires_gradient_sync(is_last)
            if is_last:
                self._fill_up_window()
        yield

    def gathered_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        self._reshard()
        for name, parameter in self.model.named_parameters():
            yield name, self._whole(cast(DTensor, parameter))

    def state_slices(self) -> Iterator[StateSlice]:
        self._reshard()
        for name, parameter in self.model.named_parameters():
            yield self._shard_slice(WEIGHT, name, parameter)
            for kind, state in tensor_states(self._optimizer, parameter).items():
                yield self._shard_slice(kind, name, state)
        yield from buffer_slices(self.model)

    def create_moments(self) -> None:
        create_moments(self._optimizer)

    def state_restored(self) -> None:
        """Nothing follows from the shards: a forward pass gathers them."""

    def owners(self) -> Iterable[Owned]:
        return fsdp2_owners(self.model, self._optimizer)

    def gradient_shares(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                yield name, cast(DTensor, parameter.grad).to_local()

    @property
    def can_repeat_steps(self) -> bool:
        return True

    def abandon_pass(self) -> None:
        cast(FSDPModule, self.model).reset_iter_state()

    def drop_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in fsdp_parameters(self.model):  # whole gradients, of a window that is reduced at its end
            parameter.unsharded_accumulated_grad = None
            if (unsharded := getattr(parameter, "_unsharded_param", None)) is not None:
                unsharded.grad = None

    def close(self) -> None:
        """Nothing to give back: the framework holds nothing but what hangs on the model."""

    def _reshard(self) -> None:
        """Put the shards back in the place of weights that an evaluation has left gathered."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _shard_slice(self, kind: str, name: str, state: torch.Tensor) -> StateSlice:
        """Return this rank's rows; a number that counts for all of them is the same on every rank."""
        if not isinstance(state, DTensor):
            return number_slice(kind, name, state)
        shard, shape = state.to_local(), tuple(state.shape)
        first_row = min(self.rank * -(-shape[0] // self.data_parallel_size), shape[0])
        start = first_row * (state.numel() // max(shape[0], 1))
        return StateSlice(kind=kind, name=name, shape=shape, start=start, tensor=flat(shard), holder=Holder.THIS_RANK)

    def _forward(self, **inputs: torch.Tensor) -> Any:
        return self.model(**inputs)

    def _fill_up_window(self) -> None:
        """Give zeros to parameters that took no part in a window so far, in the format of the others' whole gradients.

        torch 2.13 holds those in fp32 and reduces all of a block as one: a 16-bit gradient among them, of a weight that
        only the last micro batch uses, or none does, ends in an assertion of ``foreach_reduce``.
        """
        parameters = list(fsdp_parameters(self.model))
        if all(each.unsharded_accumulated_grad is None for each in parameters):
            return  # no other format: fp32 throughout, or the only micro batch
        for each in parameters:
            unsharded = getattr(each, "_unsharded_param", None)
            if unsharded is not None and unsharded.requires_grad and each.unsharded_accumulated_grad is None:
                each.unsharded_accumulated_grad = torch.zeros_like(unsharded, dtype=each.reduce_dtype)

    @torch.no_grad()
    def _optimizer_step(self) -> tuple[torch.Tensor, bool]:
        shards = self._gradient_shards()
        scale = self._scaler.scale
        norm = self._norm_over_ranks(shards) / scale
        can_update = is_finite(norm)
        if can_update:
            factor = gradient_factor(norm, max_norm=self._max_norm, scale=scale)
            if factor is not None:
                torch._foreach_mul_(shards, factor.to(shards[0].device))
            with self._watching_updates([each.to_local() for each in self._parameters], shards):
                self._optimizer.step()
        # Dropped, not zeroed: between steps no gradient exists, and the first reduction of a window brings its own.
        self._optimizer.zero_grad(set_to_none=True)
        return norm, can_update

    def _gradient_shards(self) -> list[torch.Tensor]:
        """Return this rank's part of every gradient; one that took no part on any rank has zeros, as under ZeRO."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        # The local tensors, since the norm of a DTensor would gather or reduce one parameter at a time.
        return [cast(DTensor, parameter.grad).to_local() for parameter in self._parameters]

    def _norm_over_ranks(self, shards: list[torch.Tensor]) -> torch.Tensor:
        """Return the 2-norm of the whole gradient, summed in fp64: one collective of one number."""
        squared = norm_in_fp64(shards).square().to(self.device)  # from the host, where shards rest there
        dist.all_reduce(squared)
        return squared.sqrt().float()

    @torch.no_grad()
    def _whole(self, parameter: DTensor) -> torch.Tensor:
        """Return the whole tensor; only the last of the shards that have anything is shorter than the others."""
        shard = parameter.to_local().to(self.device)
        if self._saved_format is not None:
            shard = shard.to(self._saved_format)
        num_rows, *row = parameter.shape
        rows_per_rank = -(-num_rows // self.data_parallel_size)
        if len(shard) < rows_per_rank:
            shard = torch.cat([shard, shard.new_zeros((rows_per_rank - len(shard), *row))])
        gathered = shard.new_empty((rows_per_rank * self.data_parallel_size, *row))
        all_gather(gathered, shard.contiguous())
        return gathered[:num_rows]


def _shard(model: nn.Module, decision: Decision, mesh: DeviceMesh) -> None:
    """Shard block after block and then the rest, which is gathered as one and kept from forward to backward."""
    compute = GATHERED_IN_16_BITS.get(decision.job.precision)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32 if compute else None)
    place = _place(decision)
    for block in repeated_blocks(model):
        _widen(block, decision.job.precision)
        reshards = decision.plan.reshard_after_forward
        fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=place, reshard_after_forward=reshards)
    _widen(model, decision.job.precision)
    root = fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=place)
    # A parameter without a gradient on one rank may have one on another, and all must reduce the same tensors.
    root.set_reduce_scatter_unused_params(True)


def _place(decision: Decision) -> OffloadPolicy:
    """Return where shards, their gradients and so the optimizer states rest: all of them on one side."""
    if decision.plan.offload_param is OffloadDevice.NONE:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=not decision.cluster.gpu.is_cpu)


def _widen(module: nn.Module, precision: Precision) -> None:
    """Turn 16-bit weights that are trained into the fp32 masters that are sharded, a tensor at a time."""
    if not precision.has_master_weights:
        return
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dtype.itemsize < torch.float32.itemsize:
            parameter.data = parameter.data.float()
