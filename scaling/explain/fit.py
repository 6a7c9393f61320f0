"""Whether what files ask for fits a model on a cluster, and what would be better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from scaling.explain.settings import Settings
from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.errors import NoPlanFitsError
from strategies.explain import describe_plan
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.learning.step_correction import known_step_time
from strategies.memory.predict import predict
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName, accumulation_steps
from strategies.planner.safety import DEFAULT_SAFETY, shortage
from strategies.registry import STRATEGIES
from strategies.select import decide
from strategies.units import format_bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """What files ask for, estimated, beside what the planner would take."""

    plan: Plan
    job: Job
    fits: bool
    needed_bytes: int
    usable_bytes: int
    step_time_s: float | None
    assumed: tuple[str, ...]
    """What the files leave open and what was taken."""
    better: Decision | None
    """The planner's choice for the same job; None where nothing fits."""
    is_best: bool
    why_nothing: str = ""


def fitting(settings: Settings, spec: ModelSpec, *, cluster: Cluster, seq_len: int, model: str) -> Fitting:
    """Return whether the run fits, by the closed forms, and the planner's choice for the same global batch.

    Raises:
        ScalingError: the strategy or an offload has no closed form, or the batch cannot be split over the GPUs.
    """
    assumed: list[str] = []
    job, plan = asked_plan(settings, spec, cluster=cluster, seq_len=seq_len, assumed=assumed)
    estimate = predict(spec, cluster=cluster, job=job, plan=plan)
    time = known_step_time(spec, cluster=cluster, job=job, plan=plan)
    better, why = _chosen(spec, cluster, job, model)
    return Fitting(
        plan=plan,
        job=job,
        fits=shortage(estimate, cluster=cluster) is None,
        needed_bytes=estimate.device_bytes,
        usable_bytes=cluster.gpu.memory_bytes,
        step_time_s=None if time is None else time.total_s,
        assumed=tuple(assumed),
        better=better,
        is_best=better is not None and _alike(better.plan, plan),
        why_nothing=why,
    )


def _alike(first: Plan, second: Plan) -> bool:
    return replace(first, buckets=second.buckets) == second


def _chosen(spec: ModelSpec, cluster: Cluster, job: Job, model: str) -> tuple[Decision | None, str]:
    try:
        return decide(spec, cluster=cluster, job=job, model=model, safety=DEFAULT_SAFETY), ""
    except NoPlanFitsError as error:
        return None, str(error)


def asked_plan(
    settings: Settings, spec: ModelSpec, *, cluster: Cluster, seq_len: int, assumed: list[str]
) -> tuple[Job, Plan]:
    """Return the job and the plan that files ask for; what they leave open is taken and told in ``assumed``.

    Raises:
        PlanError: the batch cannot be split over the GPUs.
    """
    micro = settings.micro_batch_size or _assume(assumed, "micro_batch_size", 1)
    total = settings.global_batch_size or micro * (settings.gradient_accumulation_steps or 1) * cluster.gpus
    steps = accumulation_steps(global_batch_size=total, micro_batch_size=micro, data_parallel_size=cluster.gpus)
    job = Job(
        seq_len=seq_len,
        global_batch_size=total,
        precision=settings.precision or _assume(assumed, "precision", _usual(settings)),
        optimizer=settings.optimizer or _assume(assumed, "optimizer", OptimizerName.ADAMW),
        attention=Attention.FLASH,
        loss=LossImplementation.STANDARD,
        gradient_clipping=1.0 if settings.gradient_clipping is None else settings.gradient_clipping,
    )
    checkpointing = settings.activation_checkpointing or _assume(
        assumed, "activation_checkpointing", ActivationCheckpointing.NONE
    )
    strategy = settings.strategy
    sized = STRATEGIES[strategy].buckets(spec, job)
    given: dict[str, Any] = settings.buckets
    return job, Plan(
        strategy=strategy,
        micro_batch_size=micro,
        gradient_accumulation_steps=steps,
        activation_checkpointing=checkpointing,
        offload_optimizer=settings.offload_optimizer,
        offload_param=settings.offload_param,
        reshard_after_forward=settings.reshard_after_forward,
        buckets=replace(sized, **given),
    )


def _usual(settings: Settings) -> Precision:
    return (
        Precision.BF16
        if settings.strategy in (StrategyName.ZERO1, StrategyName.ZERO2, StrategyName.ZERO3)
        else Precision.BF16_AUTOCAST
    )


def _assume(assumed: list[str], name: str, value: T) -> T:
    assumed.append(f"{name}={value}")
    return value


def largest_parameter(spec: ModelSpec) -> int:
    """Return the elements of the model's largest tensor."""
    return max((tensor.num_params for tensor in spec.tensors()), default=0)


def as_decision(settings: Settings, spec: ModelSpec, *, cluster: Cluster, seq_len: int, model: str) -> Decision:
    """Return the run as a decision, what plan.json holds: exactly what the files ask for, with its estimate.

    Raises:
        NoPlanFitsError: it does not fit.
        ScalingError: the closed forms do not know a part of it.
    """
    job, plan = asked_plan(settings, spec, cluster=cluster, seq_len=seq_len, assumed=[])
    estimate = predict(spec, cluster=cluster, job=job, plan=plan)
    if shortage(estimate, cluster=cluster) is not None:
        needed, usable = format_bytes(estimate.device_bytes), format_bytes(cluster.gpu.memory_bytes)
        raise NoPlanFitsError(
            f"{describe_plan(plan)} needs {needed} of {usable}; see what would fit with `scaling plan`"
        )
    return Decision(
        model=model,
        num_params=spec.num_params,
        cluster=cluster,
        job=job,
        plan=plan,
        estimate=estimate,
        time=known_step_time(spec, cluster=cluster, job=job, plan=plan),
    )
