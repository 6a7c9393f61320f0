"""Learning rate as a plain function of the updates done: the same for every world size and accumulation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never, final

if TYPE_CHECKING:
    from scaling.train_config import TrainConfig

PLATEAU_THRESHOLD = 1e-4
"""Share by which a loss must be lower than the best one to count as lower: torch 2.13, ReduceLROnPlateau."""


class ScheduleName(StrEnum):
    """Shape of the learning rate after the warm-up."""

    LINEAR = "linear"
    """Straight to zero at the last step."""
    COSINE = "cosine"
    """Half a cosine to zero at the last step."""
    CONSTANT = "constant"
    STEP = "step"
    """Times decay_factor after every decay_every steps."""
    PLATEAU = "plateau"
    """Times decay_factor when the evaluation loss has not fallen for more than patience evaluations."""


def learning_rate_at(
    step: int,
    *,
    peak: float,
    schedule: ScheduleName,
    warmup_steps: int,
    num_steps: int,
    decay_factor: float = 0.1,
    decay_every: int = 1,
) -> float:
    """Return the learning rate of the optimizer step with index ``step``, counted from 0.

    The warm-up rises from zero at step 0 to ``peak`` at step ``warmup_steps``; zero is reached after ``num_steps``. A
    plateau's reductions come on top: see `LearningRate`.
    Source: transformers 5.24.0, optimization.py, get_{linear,cosine,constant}_schedule_with_warmup; torch 2.13, StepLR.
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    progress = min((step - warmup_steps) / max(1, num_steps - warmup_steps), 1.0)
    match schedule:
        case ScheduleName.LINEAR:
            return peak * (1.0 - progress)
        case ScheduleName.COSINE:
            return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
        case ScheduleName.STEP:
            return peak * decay_factor ** ((step - warmup_steps) // decay_every)
        case ScheduleName.CONSTANT | ScheduleName.PLATEAU:
            return peak
    assert_never(schedule)


@dataclass(slots=True, kw_only=True)
class Plateau:
    """How often the evaluation loss has failed to fall, and what has become of the learning rate. Mutable.

    Source: torch 2.13, optim/lr_scheduler.py, ReduceLROnPlateau with its defaults: mode min, relative threshold.
    """

    decay_factor: float
    patience: int
    best_loss: float = math.inf
    num_bad: int = 0
    """Evaluations since the best one, or since the last reduction."""
    factor: float = 1.0
    """Of the learning rate."""

    def observe(self, eval_loss: float) -> None:
        """Take in the loss of one evaluation, which must be the same on every rank."""
        if eval_loss < self.best_loss * (1.0 - PLATEAU_THRESHOLD):
            self.best_loss, self.num_bad = eval_loss, 0
        else:
            self.num_bad += 1
        if self.num_bad > self.patience:
            self.factor, self.num_bad = self.factor * self.decay_factor, 0


@final
class LearningRate:
    """The learning rate of a run: of each update, and of what evaluations have shown so far."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._plateau = Plateau(decay_factor=config.decay_factor, patience=config.patience)

    def at(self, num_updates: int) -> float:
        """Return the learning rate of the next update, of which ``num_updates`` are done."""
        config = self._config
        planned = learning_rate_at(
            num_updates,
            peak=config.learning_rate,
            schedule=config.schedule,
            warmup_steps=config.warmup_steps,
            num_steps=config.steps,
            decay_factor=config.decay_factor,
            decay_every=max(config.decay_every, 1),
        )
        return planned * self._plateau.factor

    def observe(self, eval_loss: float) -> None:
        """Take in an evaluation; only the plateau's rate depends on it."""
        if self._config.schedule is ScheduleName.PLATEAU:
            self._plateau.observe(eval_loss)

    def state(self) -> dict[str, float]:
        """Return what a resumed run must know besides the number of updates: nothing but for a plateau."""
        if self._config.schedule is not ScheduleName.PLATEAU:
            return {}
        plateau = self._plateau
        found = {"num_bad": float(plateau.num_bad), "factor": plateau.factor}
        return found if math.isinf(plateau.best_loss) else {**found, "best_loss": plateau.best_loss}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` returned."""
        self._plateau.best_loss = state.get("best_loss", math.inf)
        self._plateau.num_bad = int(state.get("num_bad", 0))
        self._plateau.factor = state.get("factor", 1.0)
