"""The picture of a trace: what it shows at its peak is what the profile says."""

from __future__ import annotations

from scaling.storage_log import EventKind
from scaling.trace import profile
from scaling.trace.log import Row, Section, StorageUse, build_log
from scaling.trace.timeline import trace_timeline
from strategies.estimate import Phase


def test_timeline_has_the_peak_and_its_causes() -> None:
    rows = [
        Row(EventKind.ALLOCATE, 0, 100, "empty"),
        Row(EventKind.ALLOCATE, 1, 50, "mm"),
        Row(EventKind.FREE, 1, -50, "del"),
    ]
    log = build_log([Section(0, 0, Phase.FORWARD)], [rows], {0: StorageUse(0, 0), 1: StorageUse(1, 0)})
    drawn = trace_timeline(log)
    assert (drawn.peak_event, drawn.peak_bytes) == (1, 150)
    assert drawn.peak_bytes == profile(log).peak_bytes
    assert [sum(values) for values in zip(*drawn.bytes_by_cause.values(), strict=True)] == [100, 150, 100]
    assert drawn.phases == (("forward", 0, 2),)
