"""What TensorFlow's `MirroredStrategy` engine runs of a job, and in which words of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import lru_cache

from strategies.cluster import Cluster
from strategies.errors import PlanError
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt2")
"""Built by scaling/tensorflow/decoder.py."""
OPTIMIZERS = (OptimizerName.ADAMW, OptimizerName.SGD)
"""Of scaling/tensorflow/update_rules.py."""
CHECKPOINTINGS = (ActivationCheckpointing.NONE, ActivationCheckpointing.FULL)
POLICIES = {
    Precision.FP32: "float32",
    Precision.BF16_AUTOCAST: "mixed_bfloat16",
    Precision.FP16_AUTOCAST: "mixed_float16",
}
"""Keras's names: variables are fp32 under each of them, and so are gradients."""
_AS_RUN = {Precision.BF16: Precision.BF16_AUTOCAST, Precision.FP16: Precision.FP16_AUTOCAST}
"""16-bit computing with fp32 copies of the weights: in Keras the variables themselves are those copies."""


@lru_cache(maxsize=1024)
def as_run(job: Job, strategy: StrategyName) -> Job:
    """Return the job in the words of what runs it: under another strategy than ``mirrored`` it is the same.

    TensorFlow has no fused attention.
    """
    if strategy is not StrategyName.MIRRORED:
        return job
    return replace(job, precision=_AS_RUN.get(job.precision, job.precision), attention=Attention.EAGER)


def told_differently(job: Job, strategy: StrategyName) -> Iterator[str]:
    """Yield one sentence where the job is run in other words than it was given in."""
    run = as_run(job, strategy)
    names = [field.name for field in fields(Job) if getattr(job, field.name) != getattr(run, field.name)]
    if names:
        changes = ", ".join(f"{name}={getattr(job, name)} is {getattr(run, name)} there" for name in names)
        yield (
            f"TensorFlow: {changes} (Keras policy {POLICIES.get(run.precision, run.precision)}: fp32 weights and "
            f"gradients; attention as plain products)"
        )


def require_possible(spec: ModelSpec, *, cluster: Cluster, job: Job) -> None:
    """Refuse what the engine does not run.

    Raises:
        PlanError: names every such setting with its value and what to give.
    """
    problems = [*_problems_of_cluster(cluster), *_problems_of_job(job)]
    if spec.family not in FAMILIES:
        problems.append(f"model {spec.name} of the family {spec.family}: give one of {', '.join(FAMILIES)}")
    if problems:
        raise PlanError(f"strategy mirrored (TensorFlow) cannot run {'; '.join(problems)}; or take framework pytorch")


def require_possible_plan(spec: ModelSpec, *, cluster: Cluster, job: Job, plan: Plan) -> None:
    """Refuse a plan that the engine does not run; others than ``mirrored`` are not looked at.

    Raises:
        PlanError: names every such setting with its value and what to give.
    """
    if plan.strategy is not StrategyName.MIRRORED:
        return
    require_possible(spec, cluster=cluster, job=job)
    if plan.activation_checkpointing not in CHECKPOINTINGS:
        raise PlanError(
            f"strategy mirrored (TensorFlow) cannot run activation_checkpointing={plan.activation_checkpointing}; "
            f"give {' or '.join(CHECKPOINTINGS)}"
        )


def _problems_of_cluster(cluster: Cluster) -> Iterator[str]:
    if cluster.num_nodes > 1:
        yield (
            f"on gpus={cluster.gpus} in {cluster.num_nodes} nodes: one process drives the GPUs of one node; give at "
            f"most gpus={cluster.gpus_per_node}"
        )


def _problems_of_job(job: Job) -> Iterator[str]:
    if as_run(job, StrategyName.MIRRORED).precision not in POLICIES:
        yield f"precision={job.precision}: give {', '.join(POLICIES)}"
    if job.optimizer not in OPTIMIZERS:
        yield f"optimizer={job.optimizer}: give {' or '.join(OPTIMIZERS)}"
    if job.loss is not LossImplementation.STANDARD:
        yield f"loss={job.loss}: give {LossImplementation.STANDARD}"
    if not job.trains_all:
        yield f"lora={job.lora}, freeze={list(job.freeze)}: the whole model is trained there"
