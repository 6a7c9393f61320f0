"""The real ``fully_shard`` of the installed torch, as rank 0 of N, on tensors without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from scaling.collectives import completed_collectives
from scaling.ownership import Cause, Owned, Place, fsdp2_owners
from scaling.recompute import repeated_blocks
from scaling.trace.engine import EngineSpec, LossFunction, OptimizerFactory, TraceEngine, adamw, update
from scaling.trace.errors import TraceError
from scaling.trace.patching import patched
from scaling.trace.ranks.collectives import CollectivesWithoutData
from scaling.trace.ranks.group import rank_0_of
from scaling.trace.ranks.sharding_propagation import unlogged_sharding_propagation
from scaling.trace.ranks.streams import StreamTracker
from scaling.trace.recorder import Recorder

_REDUCE_SCATTER_STREAM = 3
"""FSDP2 makes it third, after the two of the all-gather (FSDPCommContext.lazy_init)."""

FindBlocks = Callable[[nn.Module], Sequence[nn.Module]]


def _every_repeated_block(module: nn.Module) -> Sequence[nn.Module]:
    return list(repeated_blocks(module))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp2(EngineSpec):
    """Parameters sharded over all ranks and gathered block by block. Weights must be fp32 (``TracePrecision.FP32``).

    The device never holds the whole model: shards are made from a model on the host or on meta tensors.
    """

    whole_model_on_device: ClassVar[bool] = False

    world_size: int
    reshard_after_forward: bool | None = None
    """Whether blocks give their weights back after forward; None for all blocks but the last."""
    param_dtype: torch.dtype | None = torch.bfloat16
    """Format of gathered weights and of the computation; None for that of the shards."""
    reduce_dtype: torch.dtype | None = torch.float32
    optimizer: OptimizerFactory = adamw
    gradient_clipping: float = 0.0
    reduce_every_micro_batch: bool = True
    """False keeps unsharded gradients over the micro batches of a step and reduces once."""
    blocks: FindBlocks = _every_repeated_block
    """Modules that are gathered as one; by default every repeated block."""
    reduce_scatter_input_on_own_stream: bool = False
    """As torch did until 2.5: the gradients' communication buffer is allocated on the reduce-scatter stream."""

    def parameters_place(self, module: nn.Module) -> Place:
        """Return the host: `fully_shard` brings one block at a time to the device, and keeps its shards."""
        return Place.HOST

    @contextmanager
    def environment(self, recorder: Recorder) -> Iterator[None]:
        with rank_0_of(self.world_size), unlogged_sharding_propagation(), self._communication(recorder):
            yield

    def _communication(self, recorder: Recorder) -> AbstractContextManager[None]:
        if recorder.device != "meta":
            return completed_collectives(settle_s=0)
        return _without_data(recorder, input_on_own_stream=self.reduce_scatter_input_on_own_stream)

    def build(self, module: nn.Module, recorder: Recorder) -> TraceEngine:
        blocks = list(self.blocks(module))
        if not blocks:
            raise TraceError(f"{type(module).__name__} has no repeated blocks to shard; name them with blocks=")
        settings: dict[str, Any] = {
            "mesh": init_device_mesh("cpu", (self.world_size,)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=self.param_dtype, reduce_dtype=self.reduce_dtype),
        }
        for block in blocks:
            keeps = block is blocks[-1] if self.reshard_after_forward is None else not self.reshard_after_forward
            fully_shard(block, reshard_after_forward=not keeps, **settings)
        fully_shard(module, **settings)
        return _Fsdp2Engine(module, self)


class _Fsdp2Engine(TraceEngine):
    def __init__(self, module: nn.Module, spec: Fsdp2) -> None:
        self._module, self._spec = module, spec
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._optimizer = spec.optimizer(self._trained)

    def owners(self) -> Iterator[Owned]:
        yield from fsdp2_owners(self._module, self._optimizer)

    def forward(self, loss: LossFunction, *, is_last: bool) -> Tensor:
        cast(FSDPModule, self._module).set_requires_gradient_sync(is_last or self._spec.reduce_every_micro_batch)
        return loss(self._module)

    def step(self) -> None:
        update(self._trained, self._optimizer, self._spec.gradient_clipping)


class _NoAllGather(AllGather):
    """Allocates what a real all-gather needs and gathers nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._recorder.hold(torch.empty(*size, dtype=dtype, device=device), Cause.COMMUNICATION_BUCKETS)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        return None


class _NoReduceScatter(ReduceScatter):
    """Allocates what a real reduce-scatter needs and reduces nothing."""

    def __init__(self, recorder: Recorder, input_on_own_stream: bool) -> None:
        self._recorder, self._input_on_own_stream = recorder, input_on_own_stream
        self._output_stream = _REDUCE_SCATTER_STREAM

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the input when called on the computing stream, the output (the gradient shards) on the other one."""
        buffer = torch.empty(*size, dtype=dtype, device=device)
        if self._recorder.current_stream:
            self._output_stream = self._recorder.current_stream
            return buffer
        stream = self._output_stream if self._input_on_own_stream else 0
        return self._recorder.hold(buffer, Cause.COMMUNICATION_BUCKETS, stream=stream)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        return None


@contextmanager
def _without_data(recorder: Recorder, *, input_on_own_stream: bool) -> Iterator[None]:
    """Let FSDP2 take meta tensors for those of a GPU, with streams that are only counted and no communication."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group, _fsdp_state
    from torch.distributed.fsdp._fully_shard import _fully_shard as api

    tracker = StreamTracker(recorder)
    with ExitStack() as stack:
        for module in (_fsdp_collectives, _fsdp_param_group, _fsdp_state):
            stack.enter_context(patched(module, "_get_device_handle", lambda _: tracker))
        stack.enter_context(patched(api, "_get_device_from_mesh", lambda _: torch.device("meta")))
        group = _fsdp_param_group
        stack.enter_context(patched(group.FSDPParamGroup, "_validate_no_meta_params", lambda _: None))
        stack.enter_context(patched(group, "DefaultAllGather", lambda: _NoAllGather(recorder)))
        reduction = partial(_NoReduceScatter, recorder, input_on_own_stream)
        stack.enter_context(patched(group, "DefaultReduceScatter", reduction))
        stack.enter_context(CollectivesWithoutData())
        yield
