"""From the logs of three shallow models to that of a deep one: every event, so that the replay is exact too.

A deeper model repeats the same events; what is freed is what was allocated the same number of blocks away. Both are
read off three depths and checked on them, never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scaling.storage_log import EventKind
from scaling.trace.errors import ExtrapolationError
from scaling.trace.extrapolate.alignment import COPIES, Fixed, Part, Sign, align
from scaling.trace.extrapolate.laws import Law, Place, fixed_law, repeated_law
from scaling.trace.log import Row, StorageUse, TraceLog, build_log, op_names


def extrapolate_depth(logs: Mapping[int, TraceLog], depth: int) -> TraceLog:
    """Return the log that a model of ``depth`` blocks has, from logs of three depths a, a + p and a + 3p.

    Exact where it returns: `TraceLog.equals` the full trace. ``p`` must be a multiple of the period after which the
    kinds of blocks repeat, and ``depth`` a plus a multiple of ``p``.

    Raises:
        ExtrapolationError: the depths are not of that form, or the logs do not continue each other.
    """
    first, second, third = _checked_depths(sorted(logs), depth)
    shallow = [_Shallow.of(logs[each]) for each in (first, second, third)]
    if len({log.sections for log in (logs[first], logs[second], logs[third])}) != 1:
        raise ExtrapolationError("the three logs have different phases; trace them with the same options")
    templates = [
        _template(shallow, number, f"in {section.phase} of step {section.step}")
        for number, section in enumerate(logs[first].sections)
    ]
    return _Writer(templates, periods=(depth - first) // (second - first)).write(logs[first])


def _checked_depths(depths: Sequence[int], depth: int) -> tuple[int, int, int]:
    period = depths[1] - depths[0] if len(depths) == 3 else 0
    if len(depths) != 3 or depths[2] - depths[0] != 3 * period:
        raise ExtrapolationError(f"depths={depths} must be three of the form a, a + p, a + 3p, for instance 3, 4, 6")
    if depth < depths[0] or (depth - depths[0]) % period:
        raise ExtrapolationError(f"depth={depth} is not {depths[0]} plus a multiple of {period}; choose other depths")
    return depths[0], depths[1], depths[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shallow:
    """A log as signs, with the place of the event that made the storage of every event."""

    signs: list[list[Sign]]
    makers: list[list[Place]]

    @classmethod
    def of(cls, log: TraceLog) -> _Shallow:
        names, kinds, changes = op_names(log), log.kind.tolist(), log.change_bytes.tolist()
        storages, causes, streams = log.storage.tolist(), log.cause.tolist(), log.stream.tolist()
        made: dict[int, Place] = {}
        signs: list[list[Sign]] = []
        makers: list[list[Place]] = []
        for number, (_, first, end) in enumerate(log.ranges()):
            signs.append([])
            makers.append([])
            for index in range(first, end):
                storage = storages[index]
                made.setdefault(storage, Place(number, index - first))
                makers[-1].append(made[storage])
                sign = Sign(kinds[index], names[index], changes[index], causes[storage], streams[storage])
                signs[-1].append(sign)
        return cls(signs=signs, makers=makers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """An event of any depth."""

    sign: Sign
    extra_bytes: int
    """By how much each added period changes its bytes."""
    law: Law
    """Of the event that made its storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Events that stand once, or once for every added period."""

    events: list[_Event]
    is_repeated: bool


def _template(shallow: Sequence[_Shallow], number: int, where: str) -> list[_Stretch]:
    signs = (shallow[0].signs[number], shallow[1].signs[number], shallow[2].signs[number])
    return [_stretch(shallow, number, part) for part in align(signs, where=where)]


def _stretch(shallow: Sequence[_Shallow], number: int, part: Part) -> _Stretch:
    if isinstance(part, Fixed):
        signs = [log.signs[number][index] for log, index in zip(shallow, part.indices, strict=True)]
        makers = [log.makers[number][index] for log, index in zip(shallow, part.indices, strict=True)]
        event = _Event(sign=signs[0], extra_bytes=_extra_bytes(signs), law=fixed_law(makers))
        return _Stretch(events=[event], is_repeated=False)
    once, thrice = (log.makers[number][start:] for log, start in zip(shallow[1:], part.starts, strict=True))
    signs = shallow[1].signs[number][part.starts[0] : part.starts[0] + part.length]
    laws = [
        repeated_law(once[offset], [thrice[offset + copy * part.length] for copy in range(3)])
        for offset in range(part.length)
    ]
    events = [_Event(sign=sign, extra_bytes=0, law=law) for sign, law in zip(signs, laws, strict=True)]
    return _Stretch(events=events, is_repeated=True)


def _extra_bytes(signs: Sequence[Sign]) -> int:
    base, extra = signs[0].change_bytes, signs[1].change_bytes - signs[0].change_bytes
    if any(sign.change_bytes != base + periods * extra for sign, periods in zip(signs, COPIES, strict=True)):
        raise ExtrapolationError(f"the bytes of {signs[0].op} do not grow evenly with the depth; trace the full depth")
    return extra


class _Writer:
    """Writes the templates out for one number of added periods."""

    def __init__(self, templates: Sequence[Sequence[_Stretch]], *, periods: int) -> None:
        self._templates, self._periods = templates, periods
        self._numbers: dict[Place, int] = {}
        self._uses: dict[int, StorageUse] = {}
        self._live: dict[int, int] = {}

    def write(self, like: TraceLog) -> TraceLog:
        rows = [self._section(number, template) for number, template in enumerate(self._templates)]
        return replace(build_log(like.sections, rows, self._uses), assumed_values=like.assumed_values)

    def _section(self, number: int, template: Sequence[_Stretch]) -> list[Row]:
        rows: list[Row] = []
        for stretch in template:
            for copy in range(self._periods if stretch.is_repeated else 1):
                for event in stretch.events:
                    rows.append(self._row(event, copy, Place(number, len(rows))))
        return rows

    def _row(self, event: _Event, copy: int, here: Place) -> Row:
        maker = event.law.place(copy=copy, periods=self._periods)
        change = event.sign.change_bytes + event.extra_bytes * self._periods
        if event.sign.kind == EventKind.ALLOCATE:
            self._numbers[here] = number = len(self._numbers)
            self._uses[number] = StorageUse(event.sign.cause, event.sign.stream)
        storage = self._numbers.get(maker)
        live = self._live.get(storage, 0) + change if storage is not None else -1
        if storage is None or live < 0 or (event.sign.kind == EventKind.FREE and live):
            raise ExtrapolationError("a storage would be freed that is not there; trace the full depth")
        self._live[storage] = live
        return Row(event.sign.kind, storage, change, event.sign.op)
