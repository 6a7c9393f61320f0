"""`RunWatch`: what one rank notices about its steps, and what it tells the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

import torch

from scaling.engines.base import Engine
from scaling.engines.gradient_norm import clip_factor
from scaling.loop import StepNumbers
from scaling.memory_watch import MemoryWatch
from scaling.ranks import together
from scaling.watching.layer_stats import LayerStats
from scaling.watching.profiler import ProfilerWindow
from scaling.watching.records import LayerRecord
from scaling.watching.step_clock import StepClock, StepTimes
from scaling.watching.utilisation import Utilisation
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
    tokens_per_s: float
    mfu: float | None
    grad_norm_clipped: float | None
    peak_allocated_bytes: int | None
    """Highest so far on any rank; None where nothing counts."""
    peak_reserved_bytes: int | None


@final
class RunWatch:
    """An `Observer` of every step of one rank. Nothing in it waits for the device, but for a look at layers."""

    def __init__(
        self, memory: MemoryWatch, *, device: torch.device, max_norm: float, utilisation: Utilisation | None
    ) -> None:
        """`max_norm`: that gradients are clipped to, 0 where they are not."""
        self.memory = memory
        self.clock = StepClock(memory.meter, device=device)
        self._max_norm = max_norm
        self._utilisation = utilisation
        self._layers: LayerStats | None = None
        self._profiler: ProfilerWindow | None = None
        self._step = self._steps_done = 0
        self._failure: ScalingError | None = None

    def look_at_layers(self, engine: Engine, *, every: int) -> None:
        """Look at the gradients of every layer in every ``every``-th step from now on; 0 never."""
        self._layers = LayerStats(engine, every=every) if every else None

    def profile(self, window: ProfilerWindow | None) -> None:
        """Let torch's profiler follow the steps of ``window``."""
        self._profiler = window

    def begin_step(self, step: int) -> None:
        """Call before the batches of ``step``, counted from 1, are asked for."""
        self._step = step
        if self._profiler is not None:
            self._profiler.before_step(step)
        self.clock.begin()

    def end_step(self) -> None:
        """Call after a step's numbers are read."""
        if self._profiler is not None:
            self._profiler.after_step(self._step)

    def close(self) -> None:
        """Stop everything that follows what this process does."""
        self.memory.stop()
        if self._profiler is not None:
            self._profiler.close()

    def before_update(self) -> None:
        if self._layers is not None:
            self._layers.look(self._step)

    def tell(self) -> Sequence[float]:
        self._steps_done += 1
        self.memory.steps_done(self._steps_done)
        return RankNumbers(
            peak_allocated_bytes=self.memory.peak_bytes(),
            peak_reserved_bytes=self.memory.peak_reserved_bytes(),
            data_s=self.clock.data_s,
            has_failed=float(self._failure is not None),
        )

    def see(self, numbers: StepNumbers, *, num_tokens: int) -> StepSight:
        """Return what was noticed about the step of ``num_tokens`` tokens that has just been read.

        Raises:
            ScalingError: some rank could not write; on every rank.
        """
        times = self.clock.end()
        ranks = [RankNumbers(*told) for told in numbers.told]
        if any(rank.has_failed for rank in ranks):
            self.end_if_failed()
        tokens_per_s = num_tokens / times.total_s
        return StepSight(
            times=times,
            tokens_per_s=tokens_per_s,
            mfu=self._utilisation.mfu(tokens_per_s) if self._utilisation else None,
            grad_norm_clipped=clipped_norm(numbers.grad_norm, max_norm=self._max_norm),
            slowest_data_s=max(rank.data_s for rank in ranks),
            peak_allocated_bytes=int(max(rank.peak_allocated_bytes for rank in ranks)) or None,
            peak_reserved_bytes=int(max(rank.peak_reserved_bytes for rank in ranks)) or None,
        )

    def layers(self) -> Iterator[LayerRecord]:
        """Yield what was found about the layers in the step that has just been read, where it was looked at."""
        if self._layers is not None and (record := self._layers.record()) is not None:
            yield record

    def failed(self, error: ScalingError) -> None:
        """Take note that this rank cannot write; the others hear of it with the next step's numbers."""
        self._failure = self._failure or error

    def end_if_failed(self) -> None:
        """Raise on every rank what any rank could not write. A collective."""
        together(partial(_raise_if, self._failure))


def clipped_norm(norm: float, *, max_norm: float) -> float | None:
    """Return the norm after clipping, as the engines clip; None where there was no update."""
    if not math.isfinite(norm):
        return None
    return norm * float(clip_factor(torch.tensor(norm), max_norm=max_norm)) if max_norm else norm


def _raise_if(failure: ScalingError | None) -> None:
    if failure is not None:
        raise failure
