"""The split of a step's time."""

from __future__ import annotations

import time

import pytest
import torch

from scaling.meter import NoMeter
from scaling.watching.step_clock import StepClock
from strategies.estimate import Phase


def test_phases_are_told_apart_and_add_up() -> None:
    clock = StepClock(NoMeter(), device=torch.device("cpu"))
    with clock.phase(Phase.FORWARD):  # of the step before
        time.sleep(0.05)
    clock.begin()
    with clock.waiting_for_data():
        time.sleep(0.02)
    for _ in range(2):
        with clock.phase(Phase.FORWARD):
            time.sleep(0.01)
        with clock.phase(Phase.BACKWARD):
            time.sleep(0.03)
    with clock.phase(Phase.OPTIMIZER_STEP):
        time.sleep(0.04)
    time.sleep(0.05)
    times = clock.end()
    # Sleeping takes at least as long as asked for; how much longer depends on what else runs here.
    assert times.data_s >= 0.02
    assert times.forward_s >= 0.02
    assert times.backward_s >= 0.06
    assert times.optimizer_s >= 0.04
    assert times.other_s >= 0.05
    parts = times.data_s + times.forward_s + times.backward_s + times.optimizer_s + times.other_s
    assert parts == pytest.approx(times.total_s, rel=1e-9)


def test_a_phase_that_fails_counts_for_nothing() -> None:
    clock = StepClock(NoMeter(), device=torch.device("cpu"))
    clock.begin()
    with pytest.raises(RuntimeError), clock.phase(Phase.BACKWARD):
        raise RuntimeError("out of memory")
    assert clock.end().backward_s == 0.0


class FakeEvent:
    """A mark in the queue of a device that takes a second for every two marks."""

    num_recorded = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.place = -1

    def record(self) -> None:
        self.place = FakeEvent.num_recorded
        FakeEvent.num_recorded += 1

    def elapsed_time(self, later: FakeEvent) -> float:
        """In milliseconds, as torch's."""
        return 500.0 * (later.place - self.place)


def test_on_cuda_phases_last_as_long_as_the_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", None)  # nothing may wait for the device
    clock = StepClock(NoMeter(), device=torch.device("cuda"))
    clock.begin()
    for _ in range(3):
        with clock.phase(Phase.FORWARD):
            pass
    with clock.phase(Phase.BACKWARD):
        torch.cuda.Event(enable_timing=True).record()  # a longer one
    times = clock.end()
    assert (times.forward_s, times.backward_s, times.optimizer_s) == (1.5, 1.0, 0.0)
    assert times.other_s == 0.0  # never below, where two clocks differ
