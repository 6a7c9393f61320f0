"""A measured plan beside what was predicted for it at both levels, and the record of the pair."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from scaling.measure import MeasuredPlan, Method, measure_plan, trace_plan
from strategies.decision import Decision
from strategies.estimate import MemoryProfile
from strategies.explain import describe_plan
from strategies.records import Device, Kind, Record, append_own

STEADY_STEPS = 2
"""The first step has no optimizer states yet: its peak is not what was predicted."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One plan at three levels; the instant one is in ``result.decision``."""

    result: MeasuredPlan
    traced: MemoryProfile | None
    """None where the result itself is a trace."""


def compare(decision: Decision, *, num_steps: int, method: Method, picture: Path | None = None) -> Comparison:
    """Return the plan measured by ``method`` and, unless that is a trace, traced as well.

    Raises:
        ScalingError: the plan cannot be run here.
    """
    if method is Method.TRACED:
        return Comparison(result=trace_plan(decision, num_steps=num_steps, picture=picture), traced=None)
    result = measure_plan(decision, num_steps=num_steps, method=method, picture=picture)
    return Comparison(result=result, traced=trace_plan(decision, num_steps=num_steps).measured)


def record(comparison: Comparison) -> None:
    """Add the instant prediction and the measured peak to the user's records; a trace is no measurement.

    A CPU has no caching allocator, so what was measured are live tensors.
    """
    result = comparison.result
    if result.method is Method.TRACED or result.num_steps < STEADY_STEPS:
        return
    decision = result.decision
    try:
        _append(decision, result)
    except OSError as error:
        logger.warning("the pair of prediction and measurement was not recorded: %s", error)


def _append(decision: Decision, result: MeasuredPlan) -> None:
    append_own(
        [
            Record(
                device=Device.CPU,
                kind=Kind.ALLOCATED,
                predicted_bytes=decision.estimate.peak_allocated_bytes,
                measured_bytes=result.measured.peak_bytes,
                label=f"{decision.model}, {describe_plan(decision.plan)}, {decision.cluster.gpus} ranks",
                source=f"scaling measure, {result.method}",
            )
        ]
    )
