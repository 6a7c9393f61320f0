"""Logs written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.ownership import Cause
from scaling.storage_log import EventKind
from scaling.trace.log import CAUSES, Row, Section, StorageUse, TraceLog, build_log
from strategies.estimate import Phase

FORWARD = Section(0, 0, Phase.FORWARD)
BACKWARD = Section(0, 0, Phase.BACKWARD)


def made(storage: int, num_bytes: int, op: str = "aten.empty.memory_format") -> Row:
    """Return the event that makes ``storage``."""
    return Row(EventKind.ALLOCATE, storage, num_bytes, op)


def freed(storage: int, num_bytes: int) -> Row:
    """Return the event that frees ``storage``."""
    return Row(EventKind.FREE, storage, -num_bytes, "free")


def resized(storage: int, change_bytes: int) -> Row:
    """Return the event that changes the size of ``storage``."""
    return Row(EventKind.RESIZE, storage, change_bytes, "resize")


def log_of(
    sections: Sequence[tuple[Section, Sequence[Row]]],
    *,
    causes: dict[int, Cause] | None = None,
    streams: dict[int, int] | None = None,
) -> TraceLog:
    """Return a log; storages are activations on stream 0 unless named."""
    numbers = {row.storage for _, rows in sections for row in rows}
    uses = {
        number: StorageUse(CAUSES.index((causes or {}).get(number, Cause.ACTIVATIONS)), (streams or {}).get(number, 0))
        for number in numbers
    }
    return build_log([section for section, _ in sections], [rows for _, rows in sections], uses)
