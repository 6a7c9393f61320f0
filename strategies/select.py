"""Choose: the first plan, in the caller's order of preference, whose predicted peak fits one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strategies.cluster import Cluster
from strategies.decision import Decision, Rejection
from strategies.errors import NoPlanFitsError, PlanError
from strategies.estimate import Estimate
from strategies.explain import nothing_fits
from strategies.job import Job
from strategies.memory.predict import predict
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.search import FixedParts, candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The plan that fits, and for every kind of plan tried before it the rejection with the smallest micro batch."""

    plan: Plan
    estimate: Estimate
    rejected: tuple[Rejection, ...]


def select(plans: Iterable[Plan], estimate: Callable[[Plan], Estimate], *, usable_bytes: int) -> Selection:
    """Return the first plan whose reserved peak is at most ``usable_bytes``.

    Raises:
        NoPlanFitsError: none does; tells the closest one and what it lacks.
    """
    rejected: dict[tuple[StrategyName, ActivationCheckpointing], Rejection] = {}
    for plan in plans:
        prediction = estimate(plan)
        over = prediction.peak_reserved_bytes - usable_bytes
        if over <= 0:
            return Selection(plan=plan, estimate=prediction, rejected=tuple(rejected.values()))
        # Micro batches come largest first: the last one kept is the one with the best chance.
        kind = (plan.strategy, plan.activation_checkpointing)
        rejected[kind] = Rejection(plan=plan, estimate=prediction, over_by_bytes=over)
    if not rejected:
        raise PlanError("no legal plan with the given fixed parts; leave one of them to the search")
    raise NoPlanFitsError(nothing_fits(tuple(rejected.values()), usable_bytes=usable_bytes))


def decide(
    spec: ModelSpec, *, cluster: Cluster, job: Job, fixed: FixedParts | None = None, model: str | None = None
) -> Decision:
    """Return the decision for ``spec``: the chosen plan and why each simpler one was rejected.

    ``model`` is what training will build the model from; the spec's name where it is None.

    Raises:
        ScalingError: the input contradicts itself, or nothing fits (NoPlanFitsError).
    """
    plans = candidates(spec, cluster=cluster, job=job, fixed=fixed or FixedParts())
    selection = select(
        plans,
        lambda plan: predict(spec, cluster=cluster, job=job, plan=plan),
        usable_bytes=cluster.gpu.memory_bytes,
    )
    return Decision(
        model=model or spec.name,
        num_params=spec.num_params,
        cluster=cluster,
        job=job,
        plan=selection.plan,
        estimate=selection.estimate,
        rejected=selection.rejected,
    )
