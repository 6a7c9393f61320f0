"""`TraceLog`: every change of the live bytes in a few training steps, and what each storage is for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaling.ownership import Cause
from scaling.storage_log import EventKind
from strategies.estimate import CauseBytes, MemoryProfile, Phase, PhaseBytes

Integers = npt.NDArray[np.int64]

CAUSES = tuple(Cause)
"""A storage's cause is kept as an index into this."""


class Section(NamedTuple):
    """A stretch of the log: one phase of one micro batch of one optimizer step."""

    step: int
    micro_batch: int
    """Counted from 0 within the step; 0 where the phase belongs to no micro batch."""
    phase: Phase


class Row(NamedTuple):
    """One event while a log is put together."""

    kind: int
    storage: int
    change_bytes: int
    op: str


class StorageUse(NamedTuple):
    """What a storage is for."""

    cause: int
    """Index into `CAUSES`."""
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceLog:
    """Allocations, resizes and frees in order. Events are columns of one length, storages likewise."""

    sections: tuple[Section, ...]
    section_ends: Integers
    """For each section the index of the first event after it."""
    kind: Integers
    """`EventKind` of every event."""
    storage: Integers
    """Number of the storage of every event, counted from 0 in the order of their first events."""
    change_bytes: Integers
    """By how much every event changes the live bytes."""
    op: Integers
    """Index into ``ops`` of the operator that caused every event."""
    ops: tuple[str, ...]
    cause: Integers
    """Index into `CAUSES` for every storage."""
    stream: Integers
    """Stream on which every storage is allocated; 0 is the one that computes."""
    assumed_values: int = 0
    """How often the module asked for the value of a tensor without data and was told a likely one: true (as for "is
    nothing padded?"), 1.0 or 0. The log holds for runs in which that is the answer."""

    @property
    def num_events(self) -> int:
        return len(self.kind)

    @property
    def num_storages(self) -> int:
        return len(self.cause)

    def live_bytes(self) -> Integers:
        """Return the bytes that live after every event."""
        return np.cumsum(self.change_bytes)

    def ranges(self) -> Iterator[tuple[Section, int, int]]:
        """Yield every section with the indices of its first event and of the first one after it."""
        first = 0
        for section, end in zip(self.sections, self.section_ends.tolist(), strict=True):
            yield section, first, end
            first = end

    def equals(self, other: TraceLog) -> bool:
        """Whether both logs say the same, event by event; the names of operators do not count."""
        columns = ("section_ends", "kind", "storage", "change_bytes", "cause", "stream")
        same = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in columns)
        return same and self.sections == other.sections


def build_log(sections: Sequence[Section], rows: Sequence[Sequence[Row]], uses: Mapping[int, StorageUse]) -> TraceLog:
    """Return the log of ``rows`` (one list a section), in the one form that logs of equal runs share.

    Frees that follow each other are put in the order in which their storages were made: the order in which Python and
    C++ containers let go of them means nothing. Storages are numbered by their first events.
    """
    numbers: dict[int, int] = {}
    for row in (row for section in rows for row in section):
        numbers.setdefault(row.storage, len(numbers))
    ordered = [list(_frees_in_order(section, numbers)) for section in rows]
    flat = [row for section in ordered for row in section]
    ops: dict[str, int] = {}
    return TraceLog(
        sections=tuple(sections),
        section_ends=np.cumsum([len(section) for section in ordered], dtype=np.int64),
        kind=_column(row.kind for row in flat),
        storage=_column(numbers[row.storage] for row in flat),
        change_bytes=_column(row.change_bytes for row in flat),
        op=_column(ops.setdefault(row.op, len(ops)) for row in flat),
        ops=tuple(ops),
        cause=_column(uses[storage].cause for storage in numbers),
        stream=_column(uses[storage].stream for storage in numbers),
    )


def _column(values: Iterable[int]) -> Integers:
    return np.fromiter(values, dtype=np.int64)


def _frees_in_order(rows: Sequence[Row], numbers: Mapping[int, int]) -> Iterator[Row]:
    for is_free, run in groupby(rows, key=lambda row: row.kind == EventKind.FREE):
        events = list(run)
        yield from sorted(events, key=lambda row: numbers[row.storage]) if is_free else events


def profile(log: TraceLog, *, step: int | None = None) -> MemoryProfile:
    """Return the highest moment of every phase, over all steps or in one of them."""
    moments = highest_moments(log, step=step)
    causes = [(phase, causes_at(log, index)) for phase, index in moments.items()]
    return MemoryProfile(phases=tuple(PhaseBytes(phase=phase, causes=split) for phase, split in causes))


def highest_moments(log: TraceLog, *, step: int | None = None) -> dict[Phase, int]:
    """Return by phase the index of the event after which most bytes live; the first such among equals.

    The event before a phase begins is one of them: what lives then is there when the phase begins.
    """
    live = log.live_bytes()
    best: dict[Phase, int] = {}
    for section, first, end in log.ranges():
        if end == 0 or step not in (None, section.step):
            continue
        before = max(first - 1, 0)
        index = before + int(np.argmax(live[before : max(end, before + 1)]))
        if section.phase not in best or live[index] > live[best[section.phase]]:
            best[section.phase] = index
    return {phase: best[phase] for phase in Phase if phase in best}


def causes_at(log: TraceLog, index: int) -> CauseBytes:
    """Return what lives after event ``index``, by cause."""
    causes = log.cause[log.storage[: index + 1]]
    sums = np.zeros(len(CAUSES), dtype=np.int64)
    np.add.at(sums, causes, log.change_bytes[: index + 1])
    return CauseBytes(**{cause.value: int(total) for cause, total in zip(CAUSES, sums, strict=True)})


def op_names(log: TraceLog) -> Sequence[str]:
    """Return the operator of every event."""
    return [log.ops[index] for index in log.op.tolist()]
