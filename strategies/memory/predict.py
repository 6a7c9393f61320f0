"""The instant level: states, activations and logits summed per moment; a phase is its highest moment."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from strategies.adapt import as_trained
from strategies.cluster import Cluster
from strategies.errors import JobError
from strategies.estimate import Estimate, Level, MemoryProfile, Phase, PhaseBytes
from strategies.job import Job, LossImplementation
from strategies.learning.run_kind import kind_of, model_of
from strategies.memory.host import host_ledger
from strategies.memory.interval import peak_interval
from strategies.memory.moments import step_phases
from strategies.memory.reserved import context_bytes, reserved_bytes, unusable_bytes
from strategies.memory.warnings import warnings_of
from strategies.mirrored_limits import as_run, require_possible_plan, told_differently
from strategies.model_spec import ModelSpec
from strategies.offload import require_possible_offload
from strategies.plan import Plan, StrategyName
from strategies.registry import STRATEGIES


def predict(spec: ModelSpec, *, cluster: Cluster, job: Job, plan: Plan) -> Estimate:
    """Return the estimate of one plan, for the rank that holds most, in the steady state.

    Raises:
        PlanError: the strategy does not run such a plan.
        JobError: the sequence is longer than the model's positions, or what is to be trained is not in the model.
        SpecError: the activations of the family, or of what is trained of it, have no closed form.
    """
    require_possible_offload(plan)
    require_possible_plan(spec, cluster=cluster, job=job, plan=plan)
    _check_seq_len(spec, job)
    told, job = tuple(told_differently(job, plan.strategy)), as_run(job, plan.strategy)
    trained = as_trained(spec, job)
    layout = STRATEGIES[plan.strategy].layout(
        trained,
        job=_job_of_states(job, plan.strategy),
        plan=plan,
        data_parallel_size=cluster.gpus,
        on_cpu=cluster.gpu.is_cpu,
    )
    memory = MemoryProfile(
        phases=(
            PhaseBytes(phase=Phase.INITIALISE, causes=layout.initialise),
            *step_phases(trained, layout, job=job, plan=plan, on_cpu=cluster.gpu.is_cpu),
        )
    )
    found = estimate_of(memory, spec, level=Level.INSTANT, cluster=cluster, job=job, plan=plan)
    return replace(found, warnings=(*told, *found.warnings)) if told else found


@lru_cache(maxsize=1024)
def _job_of_states(job: Job, strategy: StrategyName) -> Job:
    """Return the job without what changes no state, so that a search lays each strategy out once.

    Of the loss only whether it is computed inside the model matters, and under FSDP2 alone.
    """
    keeps_loss = strategy is StrategyName.FSDP2 and job.loss is LossImplementation.FUSED
    loss = job.loss if keeps_loss else LossImplementation.STANDARD
    return replace(job, seq_len=2, global_batch_size=1, gradient_clipping=1.0, loss=loss)


def estimate_of(
    memory: MemoryProfile,
    spec: ModelSpec,
    *,
    level: Level,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    peak_reserved_bytes: int | None = None,
) -> Estimate:
    """Return the estimate around the live tensors of a plan, however those were found.

    ``peak_reserved_bytes``: where it is known better than from the holes of replays.
    """
    spec = as_trained(spec, job)
    peak = memory.peak_bytes
    kind = kind_of(plan, on_cpu=cluster.gpu.is_cpu, model=model_of(spec))
    reserved = peak_reserved_bytes or max(peak, reserved_bytes(memory, spec, cluster=cluster, job=job, plan=plan))
    return Estimate(
        level=level,
        memory=memory,
        peak_reserved_bytes=reserved,
        unusable_bytes=unusable_bytes(peak, cluster=cluster),
        context_bytes=context_bytes(cluster),
        host=host_ledger(spec, cluster=cluster, job=job, plan=plan),
        warnings=tuple(warnings_of(spec, cluster=cluster, job=job, plan=plan)),
        interval=peak_interval(kind, allocated_bytes=peak, reserved_bytes=reserved),
        runs_like=kind,
    )


def _check_seq_len(spec: ModelSpec, job: Job) -> None:
    if spec.max_seq_len is not None and job.seq_len > spec.max_seq_len:
        raise JobError(
            f"seq_len={job.seq_len} is longer than the {spec.max_seq_len} positions of model {spec.name}; "
            f"give seq_len={spec.max_seq_len} or less"
        )
