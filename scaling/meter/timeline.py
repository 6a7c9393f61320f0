"""Device bytes by cause over the events of a storage log, thinned out for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.meter.attribution import Attribution
from scaling.meter.sweep import Stretch
from scaling.ownership import Cause, Place
from scaling.storage_log import StorageLog

MAX_POINTS = 4000
"""More cannot be told apart in a picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Live device bytes of one rank. ``events`` are positions in the log; every list has one entry for each."""

    events: tuple[int, ...]
    bytes_by_cause: dict[str, tuple[int, ...]]
    phases: tuple[tuple[str, int, int], ...]
    """(phase, first event, last event) of every span."""
    peak_event: int
    peak_bytes: int


def timeline(log: StorageLog, attribution: Attribution, stretches: Sequence[Stretch]) -> Timeline:
    """Return the timeline of everything logged so far; of several events in one point the highest is kept."""
    counts = [attribution.cause(number) for number in range(len(log.storages))]
    stride = max(1, len(log.events) // MAX_POINTS)
    live = dict.fromkeys(Cause, 0)
    points: list[tuple[int, dict[Cause, int]]] = []
    total = best = peak_bytes = peak_event = 0
    kept = (0, dict(live))
    for index, event in enumerate(log.events):
        count = counts[event.storage]
        if count is not None and count[1] is Place.DEVICE:
            live[count[0]] += event.change_bytes
            total += event.change_bytes
        if total >= best:
            best, kept = total, (index, dict(live))
        if total > peak_bytes:
            peak_bytes, peak_event = total, index
        if (index + 1) % stride == 0:
            points.append(kept)
            best, kept = total, (index, dict(live))
    points.append(kept)
    return Timeline(
        events=tuple(index for index, _ in points),
        bytes_by_cause={cause.value: tuple(causes[cause] for _, causes in points) for cause in Cause},
        phases=tuple((stretch.phase.value, stretch.first, stretch.last) for stretch in stretches),
        peak_event=peak_event,
        peak_bytes=peak_bytes,
    )
