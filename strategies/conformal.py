"""Intervals from the errors of earlier predictions (split conformal prediction: Lei et al. 2018, arXiv:1604.04173)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

COVERAGE = 0.9
FEWEST_RECORDS = 19
"""With fewer, the rank below would lie beyond the largest error seen: (n + 1) * 0.95 <= n needs n >= 19."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRange:
    """Between which ratios of measured / predicted a further run lies nine times in ten."""

    low: float
    high: float


def conformal_range(ratios: Sequence[float], *, coverage: float = COVERAGE) -> tuple[float, float] | None:
    """Return the ends between which a further ratio lies with a probability of ``coverage``; None for too few."""
    ordered = sorted(ratios)
    rank = math.ceil((len(ordered) + 1) * (1 - (1 - coverage) / 2))
    if len(ratios) < FEWEST_RECORDS or rank > len(ordered):
        return None
    return ordered[len(ordered) - rank], ordered[rank - 1]
