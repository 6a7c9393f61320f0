"""Are some samples larger than others? Mann and Whitney's test, exact, and the interval that goes with it.

Source: Mann and Whitney 1947, Annals of Mathematical Statistics 18, p. 50-60; the estimate and its interval: Hodges and
Lehmann 1963, Annals of Mathematical Statistics 34, p. 598-611. By ratios, since a slower loop is slower by a share.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """By how much samples of ``after`` are above those of ``before``, as ratios; 1 is no change."""

    ratio: float
    """The median of all pairwise ratios."""
    low: float
    high: float
    """Ends of the interval that covers the ratio with probability ``1 - 2 * level`` or more."""
    p_larger: float
    """Probability of samples at least as much larger, if both came from the same distribution."""
    p_smaller: float


def shift(before: Sequence[float], after: Sequence[float], *, level: float) -> Shift:
    """Return it for positive samples; the interval is from zero to infinity where there are too few for ``level``."""
    ratios = sorted(late / early for late in after for early in before)
    larger = sum((late > early) + 0.5 * (late == early) for late in after for early in before)
    sizes = len(before), len(after)
    cut = critical_value(*sizes, level=level)
    return Shift(
        ratio=statistics.median(ratios),
        low=ratios[cut] if cut >= 0 else 0.0,
        high=ratios[-1 - cut] if cut >= 0 else math.inf,
        p_larger=_probability_of_at_most(len(ratios) - larger, *sizes),
        p_smaller=_probability_of_at_most(larger, *sizes),
    )


def critical_value(first: int, second: int, *, level: float) -> int:
    """Return the largest U whose one-sided probability is not above ``level``; -1 where none is.

    >>> critical_value(5, 5, level=0.01), critical_value(4, 4, level=0.01)
    (1, -1)
    """
    orders = math.comb(first + second, first)
    up_to = accumulate(_counts(first, second))
    return next(found for found, count in enumerate(up_to) if count / orders > level) - 1


def _probability_of_at_most(statistic: float, first: int, second: int) -> float:
    """Return P(U <= statistic) for samples of one distribution without ties; a half counts up."""
    counts = _counts(first, second)
    return sum(counts[: math.ceil(statistic) + 1]) / math.comb(first + second, first)


@cache
def _counts(first: int, second: int) -> tuple[int, ...]:
    """Return the number of orders of two samples for every value of U: the coefficients of a Gaussian binomial."""
    counts = [1]
    for size in range(1, first + 1):
        # Times (1 - x^(second + size)), over (1 - x^size).
        longer = counts + [0] * second
        for index in range(len(longer) - 1, second + size - 1, -1):
            longer[index] -= longer[index - second - size]
        for index in range(size, len(longer)):
            longer[index] += longer[index - size]
        counts = longer
    return tuple(counts)
