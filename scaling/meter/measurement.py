"""What a meter returns: bytes of every span of a run, in the nouns of the estimate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strategies.estimate import CauseBytes, MemoryProfile, Phase, PhaseBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One stretch of a run in one phase: one forward of one micro batch, one optimizer step."""

    phase: Phase
    step: int
    """Optimizer steps finished before this span began."""
    device: CauseBytes
    """At the moment in the span when the device held most."""
    host: CauseBytes
    """At the moment in the span when tensors in host memory were most."""
    device_end: CauseBytes
    host_end: CauseBytes
    peak_reserved_bytes: int | None = None
    """Highest held by the caching allocator in the span; None where there is none (CPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measured bytes of one rank."""

    rank: int
    world_size: int
    spans: tuple[Span, ...]
    num_operators: int = 0
    """Operators that were followed; 0 for a meter that follows none."""
    num_late_frees: int = 0
    """Tensors that a communication thread let go after the program had: each may lift a peak by its size, by chance."""

    def device(self, *, step: int | None = None) -> MemoryProfile:
        """Return the highest moment of every phase on the device, over the whole run or in one optimizer step."""
        return _profile((span.phase, span.device) for span in self._of(step))

    def host(self, *, step: int | None = None) -> MemoryProfile:
        """Return the highest moment of every phase in host memory (offloaded states), over the run or one step."""
        return _profile((span.phase, span.host) for span in self._of(step))

    @property
    def num_steps(self) -> int:
        """Optimizer steps that were metered."""
        return len({span.step for span in self.spans if span.phase is Phase.OPTIMIZER_STEP})

    @property
    def peak_allocated_bytes(self) -> int:
        return self.device().peak_bytes

    @property
    def peak_reserved_bytes(self) -> int | None:
        reserved = [span.peak_reserved_bytes for span in self.spans if span.peak_reserved_bytes is not None]
        return max(reserved, default=None)

    def _of(self, step: int | None) -> list[Span]:
        return [span for span in self.spans if step is None or span.step == step]


def highest(measurements: Sequence[Measurement]) -> Measurement:
    """Return the measurement of the rank whose device peak is highest; the lowest rank among equals."""
    return max(measurements, key=lambda measurement: (measurement.peak_allocated_bytes, -measurement.rank))


def _profile(moments: Iterable[tuple[Phase, CauseBytes]]) -> MemoryProfile:
    best: dict[Phase, CauseBytes] = {}
    for phase, causes in moments:
        if phase not in best or causes.total_bytes > best[phase].total_bytes:
            best[phase] = causes
    return MemoryProfile(phases=tuple(PhaseBytes(phase=phase, causes=best[phase]) for phase in Phase if phase in best))
