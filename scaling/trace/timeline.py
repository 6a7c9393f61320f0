"""A trace as the same picture that a measurement gives."""

from __future__ import annotations

import numpy as np

from scaling.meter.timeline import MAX_POINTS, Timeline
from scaling.trace.log import CAUSES, TraceLog


def trace_timeline(log: TraceLog) -> Timeline:
    """Return live bytes by cause over the events of ``log``; of several events in one point the highest is kept."""
    live = log.live_bytes()
    stride = max(1, -(-log.num_events // MAX_POINTS))
    starts = range(0, log.num_events, stride)
    kept = np.array([start + int(np.argmax(live[start : start + stride])) for start in starts], dtype=np.int64)
    causes = log.cause[log.storage]
    peak = int(np.argmax(live))
    return Timeline(
        events=tuple(kept.tolist()),
        bytes_by_cause={
            cause.value: tuple(np.cumsum(np.where(causes == number, log.change_bytes, 0))[kept].tolist())
            for number, cause in enumerate(CAUSES)
        },
        phases=tuple((section.phase.value, first, max(end - 1, first)) for section, first, end in log.ranges()),
        peak_event=peak,
        peak_bytes=int(live[peak]),
    )
