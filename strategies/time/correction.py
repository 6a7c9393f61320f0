"""`StepCorrection`: what the user's own runs say about a predicted step time."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.conformal import RatioRange


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCorrection:
    """A factor on a predicted step time, from measured / predicted of earlier runs."""

    factor: float
    measured: RatioRange | None
    """Of measured / corrected; None where there were too few runs."""
    source: str
    """Which earlier runs, in words."""
