"""One pass over a storage log: the highest moment of every span, on the device and on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.meter.attribution import Attribution
from scaling.meter.measurement import Span
from scaling.ownership import Cause, Place
from scaling.storage_log import StorageLog
from strategies.estimate import CauseBytes, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Events of a log that belong to one span: ``first`` to ``last``, the latter not included."""

    phase: Phase
    step: int
    first: int
    last: int


class _Totals:
    """Live bytes by cause in one memory, and the highest moment since `begin`."""

    def __init__(self) -> None:
        self._bytes = dict.fromkeys(Cause, 0)
        self._total = 0
        self._peak_total = 0
        self._peak = dict(self._bytes)

    def begin(self) -> None:
        self._peak_total, self._peak = self._total, dict(self._bytes)

    def add(self, cause: Cause, change_bytes: int) -> None:
        self._bytes[cause] += change_bytes
        self._total += change_bytes
        if self._total > self._peak_total:
            self._peak_total, self._peak = self._total, dict(self._bytes)

    def peak(self) -> CauseBytes:
        return _causes(self._peak)

    def now(self) -> CauseBytes:
        return _causes(self._bytes)


Count = tuple[Cause, Place] | None
"""What a storage counts for; None where it has no bytes."""


def sweep(log: StorageLog, attribution: Attribution, stretches: Sequence[Stretch]) -> tuple[Span, ...]:
    """Return one span a stretch; stretches are in order and do not overlap."""
    counts = [attribution.cause(number) for number in range(len(log.storages))]
    totals = {place: _Totals() for place in Place}
    spans: list[Span] = []
    position = 0
    for stretch in stretches:
        _apply(log, counts, totals, range(position, stretch.first))
        for memory in totals.values():
            memory.begin()
        _apply(log, counts, totals, range(stretch.first, stretch.last))
        position = stretch.last
        spans.append(_span(stretch, device=totals[Place.DEVICE], host=totals[Place.HOST]))
    return tuple(spans)


def _apply(log: StorageLog, counts: Sequence[Count], totals: dict[Place, _Totals], events: range) -> None:
    for index in events:
        event = log.events[index]
        count = counts[event.storage]
        if count is not None:
            cause, place = count
            totals[place].add(cause, event.change_bytes)


def _span(stretch: Stretch, *, device: _Totals, host: _Totals) -> Span:
    return Span(
        phase=stretch.phase,
        step=stretch.step,
        device=device.peak(),
        host=host.peak(),
        device_end=device.now(),
        host_end=host.now(),
    )


def _causes(by_cause: dict[Cause, int]) -> CauseBytes:
    return CauseBytes(**{cause.value: value for cause, value in by_cause.items()})
