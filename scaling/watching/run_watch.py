"""`RunWatch`: what one rank notices about its steps, and what it tells the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

import torch

from scaling.memory_watch import MemoryWatch
from scaling.ranks import together
from scaling.watching.step_clock import StepClock, StepTimes
from strategies.errors import ScalingError


class RankNumbers(NamedTuple):
    """What a rank tells all others once a step. As floats, which bytes below 2**53 survive."""

    peak_allocated_bytes: float
    peak_reserved_bytes: float
    data_s: float
    has_failed: float
    """1 where what a rank had to write could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSight:
    """What was noticed about one step."""

    times: StepTimes
    """On this rank."""
    slowest_data_s: float
    """On the rank that waited longest for its batches."""
    peak_allocated_bytes: int | None
    """Highest so far on any rank; None where nothing counts."""
    peak_reserved_bytes: int | None


@final
class RunWatch:
    """An `Observer` of every step of one rank. Nothing in it waits for the device or talks to other ranks itself."""

    def __init__(self, memory: MemoryWatch, *, device: torch.device) -> None:
        self.memory = memory
        self.clock = StepClock(memory.meter, device=device)
        self._steps_done = 0
        self._failure: ScalingError | None = None

    def before_update(self) -> None:
        """Nothing to look at."""

    def tell(self) -> Sequence[float]:
        self._steps_done += 1
        self.memory.steps_done(self._steps_done)
        return RankNumbers(
            peak_allocated_bytes=self.memory.peak_bytes(),
            peak_reserved_bytes=self.memory.peak_reserved_bytes(),
            data_s=self.clock.data_s,
            has_failed=float(self._failure is not None),
        )

    def see(self, told: Sequence[Sequence[float]]) -> StepSight:
        """Return what was noticed about the step that has just been read.

        Raises:
            ScalingError: some rank could not write; on every rank.
        """
        times = self.clock.end()
        ranks = [RankNumbers(*numbers) for numbers in told]
        if any(rank.has_failed for rank in ranks):
            self.end_if_failed()
        return StepSight(
            times=times,
            slowest_data_s=max(rank.data_s for rank in ranks),
            peak_allocated_bytes=int(max(rank.peak_allocated_bytes for rank in ranks)) or None,
            peak_reserved_bytes=int(max(rank.peak_reserved_bytes for rank in ranks)) or None,
        )

    def failed(self, error: ScalingError) -> None:
        """Take note that this rank cannot write; the others hear of it with the next step's numbers."""
        self._failure = self._failure or error

    def end_if_failed(self) -> None:
        """Raise on every rank what any rank could not write. A collective."""
        together(partial(_raise_if, self._failure))


def _raise_if(failure: ScalingError | None) -> None:
    if failure is not None:
        raise failure
