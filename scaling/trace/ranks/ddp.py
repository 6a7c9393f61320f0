"""The real DistributedDataParallel of the installed torch, as rank 0 of N, on tensors without data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scaling.collectives import completed_collectives
from scaling.ownership import Owned
from scaling.trace.engine import EngineSpec, LossFunction, OptimizerFactory, PlainEngine, TraceEngine, adamw
from scaling.trace.ranks.collectives import CollectivesWithoutData
from scaling.trace.ranks.group import rank_0_of
from scaling.trace.recorder import Recorder
from strategies.units import MIB

_BROADCAST_BUCKET_BYTES = 250 * MIB
"""Source: torch 2.13, nn/parallel/distributed.py, broadcast_bucket_size."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ddp(EngineSpec):
    """Everything replicated; gradients copied into buckets and averaged."""

    world_size: int
    bucket_cap_mb: int = 25
    gradient_as_bucket_view: bool = False
    optimizer: OptimizerFactory = adamw
    gradient_clipping: float = 0.0

    @contextmanager
    def environment(self, recorder: Recorder) -> Iterator[None]:
        collectives = CollectivesWithoutData() if recorder.device == "meta" else completed_collectives(settle_s=0)
        with rank_0_of(self.world_size), collectives:
            yield

    def build(self, module: nn.Module, recorder: Recorder) -> TraceEngine:
        from torch.distributed.utils import _sync_module_states

        wrapped = DistributedDataParallel(
            module,
            bucket_cap_mb=self.bucket_cap_mb,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            init_sync=False,  # it also compares shapes over ranks, which needs data
        )
        _sync_module_states(
            module=module,
            process_group=wrapped.process_group,
            broadcast_bucket_size=_BROADCAST_BUCKET_BYTES,
            src=0,
            params_and_buffers_to_ignore=set(),
        )
        return _DdpEngine(wrapped, PlainEngine(module, self.optimizer, self.gradient_clipping))


class _DdpEngine(TraceEngine):
    def __init__(self, wrapped: DistributedDataParallel, plain: PlainEngine) -> None:
        self._wrapped, self._plain = wrapped, plain

    def owners(self) -> Iterator[Owned]:
        yield from self._plain.owners()

    def forward(self, loss: LossFunction, *, is_last: bool) -> Tensor:
        with nullcontext() if is_last else self._wrapped.no_sync():
            return loss(self._wrapped)

    def step(self) -> None:
        self._plain.step()
