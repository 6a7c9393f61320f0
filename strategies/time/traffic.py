"""Elements that one rank moves per optimizer step, by strategy and occasion.

Counted as the ZeRO paper does: a gather or a scatter of all parameters moves P elements, an all-reduce is one of each,
and the share (N - 1) / N of a ring is left at one. Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from strategies.plan import Plan, StrategyName


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Multiples of the parameter count, per optimizer step."""

    forward_gathers: int = 0
    backward_gathers: int = 0
    gradient_reductions: int = 0
    """Reduce-scatters, during backward."""
    gradient_gathers: int = 0
    """The second half of an all-reduce, during backward."""
    step_gathers: int = 0
    """Of updated weights, after the optimizer step."""

    @property
    def total(self) -> int:
        return (
            self.forward_gathers
            + self.backward_gathers
            + self.gradient_reductions
            + self.gradient_gathers
            + self.step_gathers
        )


def traffic(plan: Plan) -> Traffic:
    """Return what one optimizer step of ``plan`` moves.

    DDP, TensorFlow's engine and stage 1 hold back gradients until the last micro batch; stages 2 and 3 and FSDP2 reduce
    those of every one and keep only their own part, FSDP2 unless the plan says otherwise. FSDP2 that keeps its weights
    after forward does not gather them again in backward.
    Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py (stage 1 reduces at the accumulation boundary) and
    stage3.py; our engines under scaling/engines.
    """
    micro_batches = plan.gradient_accumulation_steps
    match plan.strategy:
        case StrategyName.DDP | StrategyName.MIRRORED:
            return Traffic(gradient_reductions=1, gradient_gathers=1)
        case StrategyName.ZERO1:
            return Traffic(gradient_reductions=1, step_gathers=1)
        case StrategyName.ZERO2:
            return Traffic(gradient_reductions=micro_batches, step_gathers=1)
        case StrategyName.ZERO3:
            return _sharded(micro_batches, gathers_again=True, reductions=micro_batches)
        case StrategyName.FSDP2:
            reductions = micro_batches if plan.sync_each_batch else 1
            return _sharded(micro_batches, gathers_again=plan.reshard_after_forward, reductions=reductions)
    assert_never(plan.strategy)


def _sharded(micro_batches: int, *, gathers_again: bool, reductions: int) -> Traffic:
    return Traffic(
        forward_gathers=micro_batches,
        backward_gathers=micro_batches if gathers_again else 0,
        gradient_reductions=reductions,
    )
