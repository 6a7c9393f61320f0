"""`Case`: one line of a batch of estimates, checked and turned into the nouns."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from strategies.cluster import CPU_NAME, Cluster, Gpu, gpu_preset
from strategies.errors import ClusterError, PlanError
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.model_spec import ModelSpec
from strategies.plan import (
    ActivationCheckpointing,
    Buckets,
    OffloadDevice,
    Plan,
    StrategyName,
    accumulation_steps,
)
from strategies.registry import STRATEGIES
from strategies.serialize import from_json
from strategies.units import GIB

DEFAULT_GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseCluster:
    """The cluster of a case; ``gpu`` is a name of configs/gpus.csv or ``cpu``."""

    gpu: str
    gpus: int
    gpus_per_node: int | None = None
    gpu_memory_gib: float | None = None
    host_memory_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePlan:
    """The plan of a case. Communication buffers that it does not give are sized to the model."""

    strategy: StrategyName
    micro_batch_size: int
    gradient_accumulation_steps: int | None = None
    """None: what the global batch leaves."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    checkpoint_every: int = 1
    offload_optimizer: OffloadDevice = OffloadDevice.NONE
    offload_param: OffloadDevice = OffloadDevice.NONE
    reshard_after_forward: bool = True
    sync_each_batch: bool = True
    reduce_bucket_size: int | None = None
    allgather_bucket_size: int | None = None
    stage3_prefetch_bucket_size: int | None = None
    stage3_param_persistence_threshold: int | None = None
    stage3_max_live_parameters: int | None = None
    overlap_comm: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLine:
    """A line as it is written."""

    id: str | int
    model: str | dict[str, Any]
    cluster: CaseCluster
    job: Job
    plan: CasePlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line, resolved."""

    id: str | int
    spec: ModelSpec
    model: str | None
    """How the model was named; None for an inline config."""
    cluster: Cluster
    job: Job
    plan: Plan | None
    """None: the planner is to choose."""


def read_case(line: str, *, number: int) -> Case:
    """Return the case on line ``number`` of a file.

    Raises:
        ScalingError: a field is missing, unknown, of the wrong type or impossible; names it and its value.
    """
    text = from_json(CaseLine, line, source=f"line {number}", advice="the format is in docs/cases.md")
    is_named = isinstance(text.model, str)
    spec = _spec(text.model if isinstance(text.model, str) else json.dumps(text.model, sort_keys=True), is_named)
    cluster = _cluster(text.cluster)
    return Case(
        id=text.id,
        spec=spec,
        model=str(text.model) if is_named else None,
        cluster=cluster,
        job=text.job,
        plan=None if text.plan is None else _plan(text.plan, spec=spec, job=text.job, cluster=cluster),
    )


@lru_cache(maxsize=512)
def _spec(model: str, is_named: bool) -> ModelSpec:
    return load_model_spec(model if is_named else json.loads(model))


def _cluster(given: CaseCluster) -> Cluster:
    memory = given.gpu_memory_gib
    if memory is not None and not 0 < memory < 10**6:
        raise ClusterError(f"cluster.gpu_memory_gib={memory} must be a number of GiB above zero")
    memory_bytes = None if memory is None else round(memory * GIB)
    host = given.host_memory_gib
    if host is not None and not 0 < host < 10**9:
        raise ClusterError(f"cluster.host_memory_gib={host} must be a number of GiB above zero")
    return Cluster(
        gpu=_gpu(given.gpu, memory_bytes),
        gpus=given.gpus,
        gpus_per_node=given.gpus_per_node or min(given.gpus, DEFAULT_GPUS_PER_NODE),
        host_memory_bytes=None if host is None else round(host * GIB),
    )


def _gpu(name: str, memory_bytes: int | None) -> Gpu:
    if name != CPU_NAME:
        return gpu_preset(name, memory_bytes=memory_bytes)
    if memory_bytes is None:
        raise ClusterError("cluster.gpu=cpu: give the memory of one rank with cluster.gpu_memory_gib")
    return Gpu(name=CPU_NAME, memory_bytes=memory_bytes, source="given")


def _plan(given: CasePlan, *, spec: ModelSpec, job: Job, cluster: Cluster) -> Plan:
    steps = accumulation_steps(
        global_batch_size=job.global_batch_size,
        micro_batch_size=max(given.micro_batch_size, 1),
        data_parallel_size=cluster.gpus,
    )
    if given.gradient_accumulation_steps not in (None, steps):
        raise PlanError(
            f"plan.gradient_accumulation_steps={given.gradient_accumulation_steps}, but job.global_batch_size="
            f"{job.global_batch_size} / (micro_batch_size={given.micro_batch_size} * gpus={cluster.gpus}) = {steps}"
        )
    return Plan(
        strategy=given.strategy,
        micro_batch_size=given.micro_batch_size,
        gradient_accumulation_steps=steps,
        activation_checkpointing=given.activation_checkpointing,
        checkpoint_every=given.checkpoint_every,
        reshard_after_forward=given.reshard_after_forward,
        sync_each_batch=given.sync_each_batch,
        offload_optimizer=given.offload_optimizer,
        offload_param=given.offload_param,
        buckets=_buckets(given, STRATEGIES[given.strategy].buckets(spec, job)),
    )


def _buckets(given: CasePlan, sized: Buckets) -> Buckets:
    values = {name: getattr(given, name) for name in Buckets.__slots__}
    return replace(sized, **{name: value for name, value in values.items() if value is not None})
