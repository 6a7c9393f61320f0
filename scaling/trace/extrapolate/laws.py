"""Which storage an event of a deeper log is about, as a law found in the logs of three depths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaling.trace.errors import ExtrapolationError


class Place(NamedTuple):
    """An event by the number of its section and its position in it."""

    section: int
    position: int
    """Counted from the beginning of the section."""


class Law(NamedTuple):
    """A position that grows evenly with the copy it is in and with the number of copies."""

    section: int
    base: int
    per_copy: int
    """More for each copy of a repeated part before it."""
    per_period: int
    """More for each added period."""

    def place(self, *, copy: int, periods: int) -> Place:
        return Place(self.section, self.base + self.per_copy * copy + self.per_period * periods)


def fixed_law(places: Sequence[Place]) -> Law:
    """Return the law of an event that stands once; ``places`` for 0, 1 and 3 added periods.

    Raises:
        ExtrapolationError: they are not on a line.
    """
    section, base = places[0]
    law = Law(section, base, 0, places[1].position - base)
    return _held(law, [(0, periods, place) for periods, place in zip((0, 1, 3), places, strict=True)])


def repeated_law(once: Place, thrice: Sequence[Place]) -> Law:
    """Return the law of an event of a repeated part: seen once with 1 added period, three times with 3.

    Raises:
        ExtrapolationError: they are not on a plane.
    """
    per_copy = thrice[1].position - thrice[0].position
    per_period = (thrice[0].position - once.position) // 2
    law = Law(once.section, once.position - per_period, per_copy, per_period)
    return _held(law, [(0, 1, once), *((copy, 3, place) for copy, place in enumerate(thrice))])


def _held(law: Law, observed: Sequence[tuple[int, int, Place]]) -> Law:
    for copy, periods, place in observed:
        if law.place(copy=copy, periods=periods) != place:
            raise ExtrapolationError(
                f"a storage made in section {place.section} of the trace is not used in step with the depth; trace the "
                f"full depth"
            )
    return law
