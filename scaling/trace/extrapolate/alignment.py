"""Where the logs of three depths say the same and where a deeper model repeats itself.

The logs are of ``a``, ``a + p`` and ``a + 3p`` blocks, so that what one more period adds shows once in the second and
three times in the third.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.trace.errors import ExtrapolationError

COPIES = (0, 1, 3)
"""Added periods in the three logs."""


class Sign(NamedTuple):
    """What identifies an event apart from which storage it is about."""

    kind: int
    op: str
    change_bytes: int
    cause: int
    stream: int

    def is_like(self, other: Sign) -> bool:
        """Whether both differ in their bytes alone."""
        return self._replace(change_bytes=0) == other._replace(change_bytes=0)


@dataclass(frozen=True, slots=True)
class Fixed:
    """An event that every depth has once; its index in each of the three logs."""

    indices: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Repeated:
    """``length`` events that every added period adds once more; where they begin in the second and third log."""

    length: int
    starts: tuple[int, int]


Part = Fixed | Repeated
ThreeLogs = tuple[Sequence[Sign], Sequence[Sign], Sequence[Sign]]


def align(logs: ThreeLogs, *, where: str) -> list[Part]:
    """Return the parts of one section, in order.

    Raises:
        ExtrapolationError: the sections do not differ by repetition alone; names ``where``.
    """
    parts: list[Part] = []
    first, second, third = 0, 0, 0
    while first < len(logs[0]) or second < len(logs[1]) or third < len(logs[2]):
        heads = [_at(log, index) for log, index in zip(logs, (first, second, third), strict=True)]
        if heads[0] is not None and _equal(heads):
            parts.append(Fixed((first, second, third)))
        elif length := _repeated_length(logs, first, second, third):
            _insert_midway(parts, Repeated(length, (second, third)), logs[1])
            second, third = second + length, third + 3 * length
            continue
        elif heads[0] is not None and _alike(heads):
            parts.append(Fixed((first, second, third)))  # its bytes grow with the depth
        else:
            raise ExtrapolationError(
                f"the logs of three depths do not continue each other {where}, event {first}; trace the full depth"
            )
        first, second, third = first + 1, second + 1, third + 1
    return parts


def _repeated_length(logs: ThreeLogs, first: int, second: int, third: int) -> int:
    """Return how many events before ``second`` are repeated once there, and three times at ``third``; 0 for none.

    What follows must be the same in all logs, or at least the same but for its bytes.
    """
    lengths = list(_candidates(logs, second, third))
    for same in (_equal, _alike):
        for length in lengths:
            if same([_at(log, i) for log, i in zip(logs, (first, second + length, third + 3 * length), strict=True)]):
                return length
    return 0


def _candidates(logs: ThreeLogs, second: int, third: int) -> Iterator[int]:
    _, once, thrice = logs
    for length in range(1, min(second, len(once) - second) + 1):
        block = once[second - length : second]
        if (
            block[0] == once[second]
            and once[second : second + length] == block
            and thrice[third : third + 3 * length] == [*block, *block, *block]
        ):
            yield length


def _insert_midway(parts: list[Part], repeated: Repeated, once: Sequence[Sign]) -> None:
    """Put ``repeated`` into ``parts``, halfway back through what already repeats in the same way.

    What is repeated may as well begin earlier by as many events as match those one repetition later. In the middle it
    is farthest from the first and the last block, which differ from the others in what they are linked to.
    """
    length, start = repeated.length, repeated.starts[0]
    span = 0
    for part in reversed(parts):
        if isinstance(part, Repeated) or once[start - 1 - span] != once[start - 1 - span + length]:
            break
        span += 1
    shift = span // 2
    moved = parts[len(parts) - shift :]
    del parts[len(parts) - shift :]
    parts.append(Repeated(length, (start - shift, repeated.starts[1] - shift)))
    for part in moved:
        assert isinstance(part, Fixed)
        first, second, third = part.indices
        parts.append(Fixed((first, second + length, third + 3 * length)))


def _equal(heads: Sequence[Sign | None]) -> bool:
    return heads[0] == heads[1] == heads[2]


def _alike(heads: Sequence[Sign | None]) -> bool:
    """Whether events are the same but for their bytes, or all logs are at their end."""
    first = heads[0]
    return all(head is None if first is None else head is not None and first.is_like(head) for head in heads)


def _at(log: Sequence[Sign], index: int) -> Sign | None:
    return log[index] if index < len(log) else None
