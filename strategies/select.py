"""Choose: the first plan, in the caller's order of preference, whose predicted peak fits one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from strategies.cluster import Cluster
from strategies.decision import Decision, Rejection, Resource
from strategies.errors import NoPlanFitsError, PlanError
from strategies.estimate import Estimate
from strategies.explain import describe_plan, nothing_fits
from strategies.job import Job, Precision
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


def select(plans: Iterable[Plan], estimate: Callable[[Plan], Estimate], *, cluster: Cluster) -> Selection:
    """Return the first plan that fits the GPUs, and the host where its memory is known.

    Raises:
        NoPlanFitsError: none does; tells the closest one and what it lacks.
    """
    rejected: dict[tuple[StrategyName, ActivationCheckpointing], Rejection] = {}
    for plan in plans:
        prediction = estimate(plan)
        lacking = shortage(prediction, cluster=cluster)
        if lacking is None:
            return Selection(plan=plan, estimate=prediction, rejected=tuple(rejected.values()))
        resource, over = lacking
        # Micro batches come largest first: the last one kept is the one with the best chance.
        kind = (plan.strategy, plan.activation_checkpointing)
        rejected[kind] = Rejection(plan=plan, estimate=prediction, over_by_bytes=over, resource=resource)
    if not rejected:
        raise PlanError("no legal plan with the given fixed parts; leave one of them to the search")
    raise NoPlanFitsError(nothing_fits(tuple(rejected.values()), cluster=cluster))


def shortage(estimate: Estimate, *, cluster: Cluster) -> tuple[Resource, int] | None:
    """Return what a plan has too little of and by how many bytes; None where it fits.

    A CPU rank's device memory is the host's: only what the plan rests there on purpose is on top, and that is known.
    """
    over = estimate.device_bytes - cluster.gpu.memory_bytes
    if over > 0:
        return Resource.GPU_MEMORY, over
    if estimate.host is None or cluster.host_memory_bytes is None or cluster.gpu.is_cpu:
        return None
    over = estimate.host.peak.total_bytes - cluster.host_memory_bytes
    return (Resource.HOST_MEMORY, over) if over > 0 else None


MAX_SUGGESTED_GPUS = 16384
"""Where the search for a cluster that fits ends."""


def decide(
    spec: ModelSpec,
    *,
    cluster: Cluster,
    job: Job,
    fixed: FixedParts | None = None,
    model: str | None = None,
    estimate: Callable[[Plan], Estimate] | None = None,
) -> Decision:
    """Return the decision for ``spec``: the chosen plan and why each simpler one was rejected.

    ``model`` is what training will build the model from; the spec's name where it is None. ``estimate``: how a plan's
    bytes are found; the closed forms where it is None.

    Raises:
        ScalingError: the input contradicts itself, or nothing fits (NoPlanFitsError).
    """
    fixed = fixed or FixedParts()
    if job.precision is Precision.BF16 and not cluster.gpu.supports_bf16:
        raise PlanError(
            f"precision=bf16, but {cluster.gpu.name} has no bf16 arithmetic (configs/gpus.csv); "
            f"give --precision fp16 or fp32"
        )
    try:
        selection = _select_on(spec, cluster=cluster, job=job, fixed=fixed, estimate=estimate)
    except NoPlanFitsError as error:
        raise NoPlanFitsError(f"{error}; {_more_gpus(spec, cluster=cluster, job=job, fixed=fixed)}") from error
    return Decision(
        model=model or spec.name,
        num_params=spec.num_params,
        cluster=cluster,
        job=job,
        plan=selection.plan,
        estimate=selection.estimate,
        rejected=selection.rejected,
    )


def _select_on(
    spec: ModelSpec,
    *,
    cluster: Cluster,
    job: Job,
    fixed: FixedParts,
    estimate: Callable[[Plan], Estimate] | None = None,
) -> Selection:
    return select(
        candidates(spec, cluster=cluster, job=job, fixed=fixed),
        estimate or (lambda plan: predict(spec, cluster=cluster, job=job, plan=plan)),
        cluster=cluster,
    )


def _more_gpus(spec: ModelSpec, *, cluster: Cluster, job: Job, fixed: FixedParts) -> str:
    """Return the smallest doubling of the GPUs that fits, in words; the global batch grows where it has to."""
    gpus = 2 * cluster.gpus
    while gpus <= MAX_SUGGESTED_GPUS:
        # Whole nodes like those that are there: each has its own host memory.
        larger = replace(cluster, gpus=gpus, gpus_per_node=min(gpus, cluster.gpus_per_node))
        unit = gpus * (fixed.micro_batch_size or 1)
        batch = max(job.global_batch_size, unit) // unit * unit
        try:
            selection = _select_on(spec, cluster=larger, job=replace(job, global_batch_size=batch), fixed=fixed)
        except NoPlanFitsError:
            gpus *= 2
            continue
        return f"{gpus} such GPUs would fit with {describe_plan(selection.plan)} (global batch {batch})"
    return f"no doubling of them up to {MAX_SUGGESTED_GPUS} would fit either"
