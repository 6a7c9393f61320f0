"""Which plans of a decision are drawn side by side, and the bytes that each is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaling.cause_styles import STYLES
from strategies.decision import Decision, RankedPlan, Resource
from strategies.estimate import PhaseBytes
from strategies.job import LossImplementation
from strategies.plan import OffloadDevice, Plan
from strategies.registry import STRATEGIES

OUTSIDE = ("outside the allocator", "#DDDDDD", "||")
"""Device context and what fragmentation makes unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One plan as a stack of bytes."""

    plan: Plan
    loss: LossImplementation
    peak: PhaseBytes
    device_bytes: int
    """The smallest device that runs it: the point estimate."""
    needed_bytes: int
    """Likewise at the decision's safety."""
    is_chosen: bool = False
    fits: bool = True
    is_lower_bound: bool = False


def bars(decision: Decision) -> list[Bar]:
    """Return the best plan of every strategy, and of those without one what comes closest, as bars."""
    fitting = [_bar_of(best, is_chosen=best.plan == decision.plan) for best in decision.by_strategy or _alone(decision)]
    missing = {
        rejection.plan.strategy: Bar(
            plan=rejection.plan,
            loss=rejection.loss,
            peak=rejection.peak,
            device_bytes=max(rejection.peak.total_bytes, 1),
            needed_bytes=rejection.needed_bytes,
            fits=False,
            is_lower_bound=rejection.is_lower_bound,
        )
        for rejection in reversed(decision.rejected)
        if rejection.resource is Resource.GPU_MEMORY and not _is_offloaded(rejection.plan)
    }
    shown = {bar.plan.strategy for bar in fitting}
    left_out = [bar for strategy, bar in missing.items() if strategy not in shown]
    return sorted([*fitting, *left_out], key=lambda bar: list(STRATEGIES).index(bar.plan.strategy))


def _bar_of(best: RankedPlan, *, is_chosen: bool) -> Bar:
    return Bar(
        plan=best.plan,
        loss=best.loss,
        peak=best.peak,
        device_bytes=best.device_bytes,
        needed_bytes=best.needed_bytes,
        is_chosen=is_chosen,
    )


def _alone(decision: Decision) -> tuple[RankedPlan, ...]:
    """Return the chosen plan in the form of a ranked one, for a decision that holds no others."""
    estimate = decision.estimate
    return (
        RankedPlan(
            plan=decision.plan,
            loss=decision.job.loss,
            device_bytes=estimate.device_bytes,
            needed_bytes=estimate.device_bytes,
            host_bytes=None,
            peak=estimate.memory.peak,
            time=decision.time,
        ),
    )


def _is_offloaded(plan: Plan) -> bool:
    return (plan.offload_optimizer, plan.offload_param) != (OffloadDevice.NONE, OffloadDevice.NONE)


def pieces(bar: Bar) -> Iterator[tuple[str, int, str, str]]:
    """Yield (cause, bytes, fill, hatch), what stays first."""
    causes = dict(bar.peak.causes.items())
    for cause, (colour, hatch) in STYLES.items():
        if num_bytes := causes.get(cause, 0):
            yield cause.replace("_", " "), num_bytes, colour, hatch
    outside = bar.device_bytes - sum(causes.get(cause, 0) for cause in STYLES)
    if outside > 0:
        name, colour, hatch = OUTSIDE
        yield name, outside, colour, hatch
