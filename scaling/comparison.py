"""A measured plan beside what was predicted for it at both levels, and the record of the pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from scaling.measure import MeasuredPlan, Method, measure_plan, trace_plan
from scaling.watching.run_records import STEADY_STEPS
from strategies.decision import Decision
from strategies.estimate import MemoryProfile
from strategies.learning.run_record import record_of
from strategies.learning.run_store import append_run
from strategies.load_model import model_spec, resolve_model


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
    """Add the prediction and the measured peak to the user's records; a trace is no measurement.

    A CPU has no caching allocator, so what was measured are live tensors.
    """
    result = comparison.result
    if result.method is Method.TRACED or result.num_steps < STEADY_STEPS:
        return
    decision = result.decision
    spec = model_spec(resolve_model(decision.model))
    found = record_of(decision, spec, source=f"scaling measure, {result.method}")
    append_run(replace(found, measured_allocated_bytes=result.measured.peak_bytes))
