"""An independent count of live bytes: every allocation that PyTorch's CPU allocator reports to torch.profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scaling.meter import Measurement, Meter
from scaling.ownership import Owners
from strategies.estimate import MemoryProfile, Phase

MARK = "begin of a phase"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCount:
    """Highest live bytes between the begins of two phases."""

    phase: str
    peak_bytes: int


@dataclass(slots=True)
class MarkingMeter:
    """A meter that also leaves a mark in the profile wherever a phase begins."""

    inner: Meter

    def start(self) -> None:
        self.inner.start()

    def stop(self) -> None:
        self.inner.stop()

    def attach(self, owners: Owners) -> None:
        self.inner.attach(owners)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        from torch.profiler import record_function

        with record_function(f"{MARK}: {phase.value}"):
            pass
        with self.inner.phase(phase):
            yield

    def measurement(self) -> Measurement:
        return self.inner.measurement()

    def profile(self) -> MemoryProfile:
        return self.inner.profile()


def counted(program: Callable[[Meter], object], meter: Meter) -> tuple[object, list[SpanCount]]:
    """Run the program under the profiler; return what it returns, and the allocator's peak of every phase in order.

    Memory from before does not count. Allocations of other threads (gloo's) are not reported.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = program(MarkingMeter(meter))
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    return kept, _peaks(profiler.profiler.kineto_results.experimental_event_tree())


def _peaks(tree: list[Any]) -> list[SpanCount]:
    from torch._C._profiler import _EventType

    counts: list[SpanCount] = []
    base: int | None = None
    live = 0
    for event in sorted(_flat(tree), key=lambda event: int(event.start_time_ns)):
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            base = fields.total_allocated - fields.alloc_size if base is None else base
            live = fields.total_allocated - base
            if counts:
                counts[-1] = SpanCount(phase=counts[-1].phase, peak_bytes=max(counts[-1].peak_bytes, live))
        elif event.name.startswith(MARK):
            counts.append(SpanCount(phase=event.name.removeprefix(f"{MARK}: "), peak_bytes=live))
    return counts


def _flat(events: Iterable[Any]) -> Iterator[Any]:
    stack = list(events)
    while stack:
        event = stack.pop()
        yield event
        stack.extend(event.children)
