"""Learning rate as a plain function of the optimizer step: the same for every world size and accumulation."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import assert_never


class ScheduleName(StrEnum):
    """Shape of the learning rate after the warm-up."""

    LINEAR = "linear"
    """Straight to zero at the last step."""
    COSINE = "cosine"
    """Half a cosine to zero at the last step."""
    CONSTANT = "constant"


def learning_rate_at(step: int, *, peak: float, schedule: ScheduleName, warmup_steps: int, num_steps: int) -> float:
    """Return the learning rate of the optimizer step with index ``step``, counted from 0.

    The warm-up rises from zero at step 0 to ``peak`` at step ``warmup_steps``; zero is reached after ``num_steps``.
    Source: transformers 5.24.0, optimization.py, get_{linear,cosine,constant}_schedule_with_warmup.
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    progress = min((step - warmup_steps) / max(1, num_steps - warmup_steps), 1.0)
    match schedule:
        case ScheduleName.LINEAR:
            return peak * (1.0 - progress)
        case ScheduleName.COSINE:
            return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
        case ScheduleName.CONSTANT:
            return peak
    assert_never(schedule)
