"""`Failure`: one rank that ran out of memory, in words and numbers that other ranks can be told."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import torch

from scaling.engines.base import Engine
from scaling.errors import one_line
from strategies.estimate import Phase
from strategies.units import format_bytes

PHASE_OF = {
    Engine.loss_sum.__code__: Phase.FORWARD,
    Engine.backward.__code__: Phase.BACKWARD,
    Engine.optimizer_step.__code__: Phase.OPTIMIZER_STEP,
    Engine.score.__code__: Phase.EVALUATION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An out-of-memory error on one rank."""

    rank: int
    phase: Phase | None
    """None where no engine ran."""
    allocator: str
    """What the allocator said."""
    allocated_bytes: int | None
    """Live tensors when it failed; None where nothing counts them (CPU)."""
    reserved_bytes: int | None

    @classmethod
    def of(cls, error: torch.OutOfMemoryError, *, rank: int, device: torch.device) -> Failure:
        """Return the facts; to be called while the error still holds what the failed pass held."""
        frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        counts = device.type == "cuda"
        return cls(
            rank=rank,
            phase=next((PHASE_OF[code] for code in frames if code in PHASE_OF), None),
            allocator=one_line(error, max_chars=2000),
            allocated_bytes=torch.cuda.memory_allocated(device) if counts else None,
            reserved_bytes=torch.cuda.memory_reserved(device) if counts else None,
        )

    def __str__(self) -> str:
        where = f" in the {self.phase.value.replace('_', ' ')}" if self.phase else ""
        held = f" with {format_bytes(self.allocated_bytes)} allocated" if self.allocated_bytes is not None else ""
        return f"rank {self.rank} ran out of device memory{where}{held}"
