"""Spans fold into phases: the highest moment of each, as a whole, never causes of different moments."""

from __future__ import annotations

from scaling.meter import Measurement, Span, highest
from strategies.estimate import CauseBytes, Phase

NOTHING = CauseBytes()


def span(phase: Phase, device: CauseBytes, *, step: int = 0, host: CauseBytes = NOTHING) -> Span:
    return Span(phase=phase, step=step, device=device, host=host, device_end=NOTHING, host_end=NOTHING)


def measurement(*spans: Span, rank: int = 0) -> Measurement:
    return Measurement(rank=rank, world_size=2, spans=spans)


def test_phase_is_its_highest_span_as_a_whole() -> None:
    run = measurement(
        span(Phase.FORWARD, CauseBytes(parameters=10, activations=1)),
        span(Phase.FORWARD, CauseBytes(parameters=2, activations=8), step=1),
        span(Phase.OPTIMIZER_STEP, CauseBytes(parameters=5), step=1),
    )
    assert [(phase.phase, phase.causes) for phase in run.device().phases] == [
        (Phase.FORWARD, CauseBytes(parameters=10, activations=1)),
        (Phase.OPTIMIZER_STEP, CauseBytes(parameters=5)),
    ]
    assert [phase.total_bytes for phase in run.device(step=1).phases] == [10, 5]
    assert run.peak_allocated_bytes == 11
    assert run.num_steps == 1


def test_device_and_host_have_their_own_moments() -> None:
    run = measurement(
        span(Phase.FORWARD, CauseBytes(parameters=10), host=CauseBytes(optimizer_states=1)),
        span(Phase.FORWARD, CauseBytes(parameters=3), host=CauseBytes(optimizer_states=7)),
    )
    assert (run.device().peak_bytes, run.host().peak_bytes) == (10, 7)


def test_highest_rank_is_the_one_with_the_highest_device_peak() -> None:
    low = measurement(span(Phase.FORWARD, CauseBytes(parameters=1)), rank=0)
    high = measurement(span(Phase.FORWARD, CauseBytes(parameters=2)), rank=1)
    equal = measurement(span(Phase.FORWARD, CauseBytes(parameters=2)), rank=2)
    assert highest([low, high, equal]).rank == 1
