"""What the loss is multiplied with so that fp16 gradients neither vanish nor overflow: one rule for every engine.

DeepSpeed's own scaler (0.19.8, runtime/fp16/loss_scaler.py) counts its window from another step, starts with a spare
overflow, and raises at its smallest scale, so its optimizers are told this scale instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

INITIAL_SCALE: Final = 2.0**16
FACTOR: Final = 2.0
GROWTH_STEPS: Final = 2000
"""Updates without an overflow until the scale doubles. All three: defaults of torch 2.13, amp/grad_scaler.py;
Micikevicius et al. 2018, arXiv:1710.03740, section 3.2. Powers of two change no digit of a gradient."""
MIN_SCALE: Final = 1.0
"""Default of deepspeed 0.19.8 (fp16.min_loss_scale): below it scaling would make gradients smaller than they are."""


class Outcome(StrEnum):
    """What an optimizer step came to, the same on all ranks."""

    APPLIED = "applied"
    OVERFLOW = "overflow"
    """Skipped: an fp16 gradient was beyond its range at this loss scale, which is lower from now on."""
    NOT_FINITE = "not-finite"
    """Skipped: a gradient is infinite or no number, and no lower loss scale helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateState:
    """What has become of the steps so far: all that a checkpoint must keep beside weights and optimizer states."""

    scale: float
    """The loss is multiplied with it; 1 where nothing is scaled."""
    num_updates: int = 0
    """Steps that changed the weights: what the learning rate follows."""
    num_skipped: int = 0
    since_change: int = 0
    """Updates since the scale last changed."""
    skipped_in_a_row: int = 0


class LossScaler:
    """Keeps the loss scale and counts updates. Without scaling the scale is 1 and stays there."""

    def __init__(self, *, is_dynamic: bool) -> None:
        self._is_dynamic = is_dynamic
        self.state = UpdateState(scale=INITIAL_SCALE if is_dynamic else 1.0)

    @property
    def scale(self) -> float:
        return self.state.scale

    def update(self, *, is_finite: bool) -> Outcome:
        """Count a step whose gradients were or were not finite and settle the next one's scale."""
        state = self.state
        if is_finite:
            since_change, grows = state.since_change + 1, self._is_dynamic and state.since_change + 1 >= GROWTH_STEPS
            self.state = replace(
                state,
                scale=state.scale * FACTOR if grows else state.scale,
                num_updates=state.num_updates + 1,
                since_change=0 if grows else since_change,
                skipped_in_a_row=0,
            )
            return Outcome.APPLIED
        is_overflow = self._is_dynamic and state.scale > MIN_SCALE
        self.state = replace(
            state,
            scale=max(state.scale / FACTOR, MIN_SCALE) if is_overflow else state.scale,
            num_skipped=state.num_skipped + 1,
            since_change=0,
            skipped_in_a_row=state.skipped_in_a_row + 1,
        )
        return Outcome.OVERFLOW if is_overflow else Outcome.NOT_FINITE
