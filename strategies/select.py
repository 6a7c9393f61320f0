"""Choose: the fastest plan that fits, what it was chosen against, and why each other kind of plan does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from strategies.cluster import Cluster
from strategies.decision import Decision, Rejection
from strategies.errors import NoPlanFitsError, PlanError
from strategies.estimate import Estimate
from strategies.explain import closeness, nothing_fits
from strategies.job import Job
from strategies.model_spec import ModelSpec
from strategies.plan import OffloadDevice, Plan, StrategyName
from strategies.planner.ranking import MAX_ALTERNATIVES, best_by_strategy, in_order, pareto_front, ranked
from strategies.planner.safety import DEFAULT_SAFETY, shortage
from strategies.planner.sweep import Fit, Question, Sweep, WhyNot, rejection_of
from strategies.planner.warnings import warnings_about
from strategies.search import FixedParts

__all__ = ["DEFAULT_SAFETY", "decide", "shortage"]


def decide(
    spec: ModelSpec,
    *,
    cluster: Cluster,
    job: Job,
    fixed: FixedParts | None = None,
    model: str | None = None,
    estimate: Callable[[Plan], Estimate] | None = None,
    safety: float = DEFAULT_SAFETY,
    why_not: WhyNot | None = None,
) -> Decision:
    """Return the decision for ``spec``: the chosen plan, the ranked others, and what does not fit.

    ``model`` is what training will build the model from; the spec's name where it is None. ``estimate``: how the bytes
    of ``job``'s plans are found in the end; the closed forms, which rank them first, where it is None. ``safety``: the
    coverage of the interval whose upper end must fit; 0 for the point estimate. ``why_not``: why
    a plan may not be offered.

    Raises:
        ScalingError: the input contradicts itself, or nothing fits (NoPlanFitsError).
    """
    fixed = fixed or FixedParts()
    if estimate is not None:
        fixed = replace(fixed, searches_loss=False)  # it is made for the job's own
    question = Question(spec=spec, cluster=cluster, job=job, fixed=fixed, safety=safety, why_not=why_not)
    _require_precision(question)
    sweep = Sweep(question)
    outcomes = list(sweep.outcomes())
    best = ranked(sweep, (outcome for outcome in outcomes if isinstance(outcome, Fit)))
    rejected = _by_kind((outcome for outcome in outcomes if isinstance(outcome, Rejection)), best)
    if estimate is not None:
        best, more = _checked(sweep, best, estimate)
        rejected = (*more, *rejected)
    if not best:
        raise NoPlanFitsError(nothing_fits(rejected, cluster=cluster, safety=safety))
    return _decision(sweep, best, rejected, model=model or spec.name, has_closed_forms=estimate is None)


def _decision(
    sweep: Sweep, best: list[Fit], rejected: tuple[Rejection, ...], *, model: str, has_closed_forms: bool
) -> Decision:
    question, chosen = sweep.question, best[0]
    cluster, safety = question.cluster, question.safety
    front = pareto_front(sweep, best) if has_closed_forms else [chosen]
    return Decision(
        model=model,
        num_params=question.spec.num_params,
        cluster=cluster,
        job=chosen.variant.job,
        plan=chosen.plan,
        estimate=chosen.estimate,
        rejected=rejected,
        safety=safety,
        time=chosen.time,
        by_strategy=tuple(fit.ranked(cluster=cluster, safety=safety) for fit in best_by_strategy(best)),
        alternatives=tuple(fit.ranked(cluster=cluster, safety=safety) for fit in best[1 : 1 + MAX_ALTERNATIVES]),
        front=tuple(fit.ranked(cluster=cluster, safety=safety) for fit in front),
        warnings=tuple(warnings_about(chosen, question)) if has_closed_forms else (),
    )


def _require_precision(question: Question) -> None:
    gpu, precision = question.cluster.gpu, question.job.precision
    if not gpu.computes_in(precision):
        raise PlanError(
            f"precision={precision}, but {gpu.name} has no bf16 arithmetic (configs/gpus.csv); give --precision fp16 "
            f"or fp32"
        )


Kind = tuple[StrategyName, bool, OffloadDevice, OffloadDevice]


def _kind(plan: Plan) -> Kind:
    return plan.strategy, plan.reshard_after_forward, plan.offload_optimizer, plan.offload_param


def _by_kind(rejections: Iterable[Rejection], fits: list[Fit]) -> tuple[Rejection, ...]:
    """Return of every kind of plan that does not fit at all the one that comes closest, simplest kind first."""
    fitting = {_kind(fit.plan) for fit in fits}
    closest: dict[Kind, Rejection] = {}
    for each in rejections:
        kind = _kind(each.plan)
        if kind not in fitting and (kind not in closest or closeness(each) < closeness(closest[kind])):
            closest[kind] = each
    return tuple(closest.values())


def _checked(
    sweep: Sweep, best: list[Fit], estimate: Callable[[Plan], Estimate]
) -> tuple[list[Fit], tuple[Rejection, ...]]:
    """Return the plans from the first on that fits by ``estimate`` too, with its bytes, and those before it.

    An estimate may take seconds or minutes: no more are made than it takes.
    """
    cluster, rejected = sweep.question.cluster, list[Rejection]()
    for fit in in_order(sweep, best):
        found = estimate(fit.plan)
        lacking = shortage(found, cluster=cluster, safety=sweep.question.safety)
        if lacking is None:
            others = [each for each in best if each.order != fit.order]
            return [replace(fit, estimate=found), *others], tuple(rejected)
        rejected.append(rejection_of(fit.variant, fit.plan, found, lacking, cluster=cluster))
    return [], tuple(rejected)
