"""Where the time of an optimizer step goes, on this rank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, final

import torch

from scaling.meter import PhaseMeter
from scaling.ownership import Owners
from strategies.estimate import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of one optimizer step on this rank; the parts add up to the whole."""

    total_s: float
    data_s: float
    """Until the step's batches were there."""
    forward_s: float
    backward_s: float
    """Waiting for other ranks' gradients included."""
    optimizer_s: float
    """Norm, clipping, update and what is gathered after it."""

    @property
    def other_s(self) -> float:
        """The rest: what ranks tell each other beside the loss, and Python."""
        return max(0.0, self.total_s - self.data_s - self.forward_s - self.backward_s - self.optimizer_s)


class Stopwatch(Protocol):
    """A way of taking the time that does not wait for the device."""

    def mark(self) -> object:
        """Return this moment in the device's work."""

    def seconds(self, first: object, last: object) -> float:
        """Return the seconds between two moments, both of them over."""


@final
class HostStopwatch:
    """For a CPU, whose work is done when a call returns."""

    def mark(self) -> object:
        return time.perf_counter()

    def seconds(self, first: object, last: object) -> float:
        assert isinstance(first, float)
        assert isinstance(last, float)
        return last - first


@final
class CudaStopwatch:
    """Events in the device's queue, read after the step's numbers have been waited for anyway."""

    def mark(self) -> object:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, first: object, last: object) -> float:
        assert isinstance(first, torch.cuda.Event)
        assert isinstance(last, torch.cuda.Event)
        return float(first.elapsed_time(last)) / 1e3


@final
class StepClock:
    """A meter of phases that takes their times and hands them on to the meter of memory inside."""

    def __init__(self, meter: PhaseMeter, *, device: torch.device) -> None:
        self._meter = meter
        self._stopwatch: Stopwatch = CudaStopwatch() if device.type == "cuda" else HostStopwatch()
        self._marks: list[tuple[Phase, object, object]] = []
        self._start = self._data_s = 0.0

    def attach(self, owners: Owners) -> None:
        self._meter.attach(owners)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        with self._meter.phase(phase):
            first = self._stopwatch.mark()
            yield
            self._marks.append((phase, first, self._stopwatch.mark()))

    def begin(self) -> None:
        """Start the time of a step; what was marked before does not belong to it."""
        self._marks.clear()
        self._data_s = 0.0
        self._start = time.perf_counter()

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Return the context in which batches are fetched. The device does nothing then: its last step is over."""
        start = time.perf_counter()
        yield
        self._data_s += time.perf_counter() - start

    @property
    def data_s(self) -> float:
        """Seconds that this step has waited for data so far."""
        return self._data_s

    def end(self) -> StepTimes:
        """Return the times since `begin`; the device must be done, or it is waited for."""
        total_s = time.perf_counter() - self._start
        seconds = dict.fromkeys(Phase, 0.0)
        for phase, first, last in self._marks:
            seconds[phase] += self._stopwatch.seconds(first, last)
        return StepTimes(
            total_s=total_s,
            data_s=self._data_s,
            forward_s=seconds[Phase.FORWARD],
            backward_s=seconds[Phase.BACKWARD],
            optimizer_s=seconds[Phase.OPTIMIZER_STEP],
        )
