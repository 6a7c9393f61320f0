"""From the logs of a few batch sizes or sequence lengths to another one: same events, bytes on a polynomial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import comb

import numpy as np

from scaling.trace.errors import ExtrapolationError
from scaling.trace.log import TraceLog

_STRUCTURE = ("section_ends", "kind", "storage", "op", "cause", "stream")


def extrapolate_size(
    logs: Mapping[int, TraceLog], size: int, *, degree: int, thresholds: Sequence[int] = ()
) -> TraceLog:
    """Return the log of ``size`` (samples, or tokens a sample) from logs of evenly spaced other sizes.

    `degree`: 1 where bytes grow evenly, 2 where masks or scores grow with the square. One log more than the polynomial
    needs must be given, ``degree + 2`` in all: it checks the others. `thresholds`: sizes from which on the model does
    something else, such as the window of its attention; none may lie between the logs and ``size``.

    A batch of one sample takes other paths (views of size one need no copies): trace it itself.

    Raises:
        ExtrapolationError: the logs differ in more than bytes, or their bytes are not on such a polynomial.
    """
    sizes = sorted(logs)
    _check_sizes(sizes, size, degree)
    _check_thresholds(sizes, size, thresholds)
    ordered = [logs[each] for each in sizes]
    for other in ordered[1:]:
        _check_structure(ordered[0], other)
    columns = [log.change_bytes for log in ordered]
    differences = [columns[0]]
    while len(columns) > 1:
        columns = [after - before for before, after in pairwise(columns)]
        differences.append(columns[0])
    if np.any(differences[degree + 1]):
        raise ExtrapolationError(
            f"bytes are not a polynomial of degree {degree} in the sizes {sizes}; trace {size} itself"
        )
    steps = (size - sizes[0]) // (sizes[1] - sizes[0])
    change = sum(_binomial(steps, order) * differences[order] for order in range(degree + 1))
    return replace(ordered[0], change_bytes=np.asarray(change, dtype=np.int64))


def _binomial(steps: int, order: int) -> int:
    return comb(steps, order) if steps >= 0 else (-1) ** order * comb(order - steps - 1, order)


def _check_sizes(sizes: Sequence[int], size: int, degree: int) -> None:
    gaps = {after - before for before, after in pairwise(sizes)}
    if degree not in (1, 2) or len(sizes) != degree + 2 or len(gaps) != 1:
        raise ExtrapolationError(f"sizes={sizes} must be {degree + 2} evenly spaced ones for degree={degree} (1 or 2)")
    if 1 in sizes or size <= 1:
        raise ExtrapolationError(f"size={size} from sizes={sizes}: a size of 1 takes other paths; trace it itself")
    gap = gaps.pop()
    if (size - sizes[0]) % gap:
        raise ExtrapolationError(f"size={size} is not {sizes[0]} plus a multiple of {gap}; trace it itself")


def _check_thresholds(sizes: Sequence[int], size: int, thresholds: Sequence[int]) -> None:
    low, high = min(*sizes, size), max(*sizes, size)
    if crossed := [threshold for threshold in thresholds if low < threshold <= high]:
        raise ExtrapolationError(
            f"size={size} is on the other side of {crossed[0]} than sizes={list(sizes)}, where the model does "
            f"something else; trace it itself"
        )


def _check_structure(log: TraceLog, other: TraceLog) -> None:
    same = all(np.array_equal(getattr(log, name), getattr(other, name)) for name in _STRUCTURE)
    if not same or log.sections != other.sections or log.ops != other.ops:
        raise ExtrapolationError("the logs differ in more than their bytes; trace the wanted size itself")
