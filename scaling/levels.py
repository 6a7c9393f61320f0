"""One plan at the level the user asks for: closed forms, a trace of the real engine, or the real engine itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.errors import PlanError, SpecError
from strategies.estimate import NO_ESTIMATE, Estimate, Level
from strategies.job import Job
from strategies.memory.predict import estimate_of, predict
from strategies.model_spec import ModelSpec
from strategies.plan import Plan

if TYPE_CHECKING:
    from scaling.measure import MeasuredPlan

NUM_STEPS = 2
"""Optimizer states appear in the first step: the second is the steady state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be trained on what; plans are estimated for it."""

    model: str
    """What the trainer builds the model from."""
    spec: ModelSpec
    cluster: Cluster
    job: Job


def estimate_at(level: Level, plan: Plan, question: Question) -> Estimate:
    """Return the estimate of ``plan`` at ``level``; traced takes seconds, measured takes real steps on this machine.

    Raises:
        ScalingError: the plan is not possible, or the level cannot run it.
    """
    if level is Level.INSTANT:
        return predict(question.spec, cluster=question.cluster, job=question.job, plan=plan)
    decision = _as_decision(plan, question)
    run = _traced if level is Level.TRACED else _measured
    return run(decision, question)


def estimator(level: Level, question: Question) -> Callable[[Plan], Estimate]:
    """Return how a search estimates plans at ``level``: those that the closed forms rule out are not run."""

    def estimate(plan: Plan) -> Estimate:
        instant = estimate_at(Level.INSTANT, plan, question)
        if level is Level.INSTANT or instant.device_bytes > question.cluster.gpu.memory_bytes:
            return instant
        return estimate_at(level, plan, question)

    return estimate


def _traced(decision: Decision, question: Question) -> Estimate:
    from scaling.measure import trace_plan

    result = trace_plan(decision, num_steps=NUM_STEPS)
    return _around(result, question, decision.plan, Level.TRACED)


def _measured(decision: Decision, question: Question) -> Estimate:
    from scaling.measure import Method, measure_plan

    if not decision.cluster.gpu.is_cpu:
        raise PlanError(
            f"level=measured runs the plan on this machine's CPU, but gpu={decision.cluster.gpu.name}; "
            f"give --gpu cpu, or --level traced"
        )
    result = measure_plan(decision, num_steps=NUM_STEPS, method=Method.SIMULATED)
    return _around(result, question, decision.plan, Level.MEASURED)


def _around(result: MeasuredPlan, question: Question, plan: Plan, level: Level) -> Estimate:
    return estimate_of(
        result.measured,
        question.spec,
        level=level,
        cluster=question.cluster,
        job=question.job,
        plan=plan,
        peak_reserved_bytes=result.peak_reserved_bytes,
    )


def _as_decision(plan: Plan, question: Question) -> Decision:
    return Decision(
        model=question.model,
        num_params=question.spec.num_params,
        cluster=question.cluster,
        job=question.job,
        plan=plan,
        estimate=_instant_or_nothing(plan, question),
    )


def _instant_or_nothing(plan: Plan, question: Question) -> Estimate:
    """Return the closed forms' estimate; a family without them can still be traced and measured."""
    try:
        return estimate_at(Level.INSTANT, plan, question)
    except SpecError:
        return NO_ESTIMATE
