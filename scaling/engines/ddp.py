"""DDP: every rank holds all model states; gradients are averaged in buckets while backward still runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling.engines.autocast import autocast_forward
from scaling.engines.base import Engine
from scaling.engines.gradient_norm import global_norm, gradient_factor, is_finite
from scaling.engines.master_weights import MasterWeights
from scaling.engines.optimizer import OptimizerSettings, make_optimizer, split_by_decay
from scaling.engines.quiet import without_line
from scaling.engines.state import WEIGHT, Holder, StateSlice, buffer_slices, create_moments, moment_slices, whole_slice
from scaling.meter import PhaseMeter
from scaling.ownership import Cause, Owned, module_owners
from strategies.decision import Decision
from strategies.units import MIB

USELESS_WARNING = "find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters"
"""torch 2.13, csrc/distributed/c10d/reducer.cpp. The search is switched on for more than unused ones, see `_wrap`."""


@final
class DdpEngine(Engine):
    """torch's DistributedDataParallel, with fp32 masters beside 16-bit weights where the job asks for them.

    Pure bf16 has none: AdamW updates the 16-bit weights, with 16-bit moments.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        decision: Decision,
        settings: OptimizerSettings,
        device: torch.device,
        meter: PhaseMeter,
    ) -> None:
        super().__init__(model.to(device), job=decision.job, device=device, meter=meter)
        job = decision.job
        autocast_forward(model, precision=job.precision, device=device)
        self._max_norm = job.gradient_clipping
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        bucket_bytes = decision.plan.buckets.reduce_bucket_size * job.precision.weight_bytes
        # One rank has nobody to synchronise with: without buckets gradients live from backward to the step only.
        self._ddp = _wrap(model, device=device, bucket_bytes=bucket_bytes) if self.data_parallel_size > 1 else None
        self._may_warn = True
        decayed, undecayed = split_by_decay(model, settings)
        self._masters = MasterWeights(decayed + undecayed) if job.precision.has_master_weights else None
        if self._masters:
            decayed, undecayed = self._masters.of(decayed), self._masters.of(undecayed)
        self._optimizer = make_optimizer(decayed, undecayed, settings, job=decision.job)

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext() if is_last or self._ddp is None else self._ddp.no_sync()

    def gathered_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.named_parameters()

    def state_slices(self) -> Iterator[StateSlice]:
        for name, parameter in self.model.named_parameters():
            has_master = self._masters is not None and parameter.requires_grad
            trained = self._masters.of([parameter])[0] if self._masters and has_master else parameter
            yield whole_slice(WEIGHT, name, trained, Holder.ALL_RANKS)
            yield from moment_slices(self._optimizer, trained, name)
        yield from buffer_slices(self.model)

    def create_moments(self) -> None:
        create_moments(self._optimizer)

    def state_restored(self) -> None:
        if self._masters:
            self._masters.round_to_weights()

    def owners(self) -> Iterable[Owned]:
        yield from module_owners(self.model, self._optimizer)
        for master in self._masters.masters if self._masters else ():
            yield Owned(Cause.MASTER_WEIGHTS, master)
            if master.grad is not None:
                yield Owned(Cause.STEP_TEMPORARIES, master.grad)

    def gradient_shares(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad.flatten().tensor_split(self.data_parallel_size)[self.rank]

    @property
    def can_repeat_steps(self) -> bool:
        return True

    def abandon_pass(self) -> None:
        if self._ddp is not None:
            self._ddp.reducer._reset_state()  # torch 2.13 has no public name for it

    @torch.no_grad()
    def drop_gradients(self) -> None:
        if self._ddp is None:
            for parameter in self._parameters:
                parameter.grad = None
        else:
            # Zeroed in place, not dropped: they are views of the buckets, and the next window accumulates right there.
            torch._foreach_zero_(self._complete_gradients())

    def close(self) -> None:
        del self._ddp

    def _forward(self, **inputs: torch.Tensor) -> Any:
        # Without gradients there is nothing to synchronise, and ranks may run different numbers of forwards.
        if self._ddp is None or not torch.is_grad_enabled():
            return self.model(**inputs)
        if not (self._may_warn and self._ddp.require_backward_grad_sync):
            return self._ddp(**inputs)
        self._may_warn = False  # the reducer says it once, in the first forward after which gradients are reduced
        with without_line(USELESS_WARNING):
            return self._ddp(**inputs)

    @torch.no_grad()
    def _optimizer_step(self) -> tuple[torch.Tensor, bool]:
        gradients = self._complete_gradients()
        scale = self._scaler.scale
        norm = global_norm(gradients) / scale
        can_update = is_finite(norm)
        if can_update:
            self._update(gradients, gradient_factor(norm, max_norm=self._max_norm, scale=scale))
        self.drop_gradients()
        return norm, can_update

    def _update(self, gradients: list[torch.Tensor], factor: torch.Tensor | None) -> None:
        if self._masters:
            self._masters.step(self._optimizer, gradient_factor=factor)
            return
        if factor is not None:
            torch._foreach_mul_(gradients, factor)
        with self._watching_updates(self._parameters, gradients):
            self._optimizer.step()

    def _complete_gradients(self) -> list[torch.Tensor]:
        """Return every parameter's gradient; one that took no part on any rank has zeros, as under ZeRO."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]


def _wrap(model: nn.Module, *, device: torch.device, bucket_bytes: int) -> DistributedDataParallel:
    with warnings.catch_warnings():
        # torch 2.13 renames broadcast_buffers, with another meaning at the start; older versions know only this name.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
        return DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=bucket_bytes / MIB,
            broadcast_buffers=False,  # position tables and the like: equal everywhere and never written
            gradient_as_bucket_view=True,
            # Gradients of parameters that took no part are zero, as under ZeRO, instead of an error. It also keeps
            # the buckets of the first step: new ones in the second would hold all gradients twice for a moment. The
            # search costs a walk over the graph; where it finds nothing torch advises against it (`USELESS_WARNING`).
            find_unused_parameters=True,
        )
