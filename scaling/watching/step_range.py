"""A range of optimizer steps as flags write it. Imports nothing heavy: flags are checked before anything is."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """Optimizer steps ``first`` to ``last``, counted from 1, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"

    @property
    def num_steps(self) -> int:
        return self.last - self.first + 1


def parse_step_range(text: str) -> StepRange:
    """Return the range that ``text`` writes as ``FIRST:LAST``.

    >>> parse_step_range("10:13").num_steps
    4

    Raises:
        ValueError: it does not; says what to write.
    """
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"{text!r} is not FIRST:LAST; write for instance 10:13, both included, counted from 1")
    return StepRange(first=int(found[1]), last=int(found[2]))
