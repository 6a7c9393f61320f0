"""Say why, in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator

from strategies.cluster import Cluster
from strategies.decision import Decision, Rejection, Resource
from strategies.estimate import PhaseBytes
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.units import format_bytes


def describe_plan(plan: Plan) -> str:
    """Return a plan as one phrase.

    Example: ``zero2, activation checkpointing full, micro batch 4 x accumulation 2``.
    """
    checkpointing = (
        "no activation checkpointing"
        if plan.activation_checkpointing is ActivationCheckpointing.NONE
        else f"activation checkpointing {plan.activation_checkpointing}"
    )
    if plan.checkpoint_every > 1:
        checkpointing += f" of every {plan.checkpoint_every}th block"
    parts = [str(plan.strategy), *_placements(plan), checkpointing]
    return f"{', '.join(parts)}, micro batch {plan.micro_batch_size} x accumulation {plan.gradient_accumulation_steps}"


def _placements(plan: Plan) -> Iterator[str]:
    if plan.strategy is StrategyName.FSDP2 and not plan.reshard_after_forward:
        yield "weights kept after forward"
    if plan.offload_optimizer is not OffloadDevice.NONE:
        yield f"optimizer on {plan.offload_optimizer}"
    if plan.offload_param is not OffloadDevice.NONE:
        yield f"parameters on {plan.offload_param}"


def describe_rejection(rejection: Rejection) -> str:
    """Return one rejected plan as a sentence: what it needs, by how much it is over, and its two largest causes."""
    estimate, over = rejection.estimate, format_bytes(rejection.over_by_bytes)
    plan = describe_plan(rejection.plan)
    if rejection.resource is Resource.HOST_MEMORY and estimate.host is not None:
        return f"{plan}: needs {format_bytes(estimate.host.peak.total_bytes)} of host memory a node, {over} over"
    return f"{plan}: needs {format_bytes(estimate.device_bytes)}, {over} over ({largest_causes(estimate.memory.peak)})"


def largest_causes(phase: PhaseBytes, *, count: int = 2) -> str:
    """Return the largest causes of a phase, as ``in backward: activations 3.10 GiB, parameters 2.00 GiB``."""
    ranked = sorted(phase.causes.items(), key=lambda item: -item[1])[:count]
    parts = ", ".join(f"{cause.replace('_', ' ')} {format_bytes(num_bytes)}" for cause, num_bytes in ranked)
    return f"in {phase.phase.replace('_', ' ')}: {parts}"


def why(decision: Decision) -> list[str]:
    """Return why each simpler plan was rejected, in order of preference; empty when the simplest one was taken."""
    return [describe_rejection(rejection) for rejection in decision.rejected]


def nothing_fits(rejected: tuple[Rejection, ...], *, cluster: Cluster) -> str:
    """Return the message for a job that fits nowhere: the closest plan, what it lacks, what decides its peak."""
    usable_bytes = cluster.gpu.memory_bytes
    # What fits the GPUs and lacks host memory only is closer than anything that does not.
    closest = min(rejected, key=lambda each: (each.resource is Resource.GPU_MEMORY, each.over_by_bytes))
    if closest.resource is Resource.HOST_MEMORY:
        host = format_bytes(cluster.host_memory_bytes or 0)
        return (
            f"no plan fits {format_bytes(usable_bytes)} a GPU and {host} of host memory a node; the closest is "
            f"{describe_rejection(closest)}; give nodes with more memory, or fewer GPUs a node"
        )
    peak = closest.estimate.memory.peak.causes
    grows_with_tokens = peak.activations + peak.recomputed_block + peak.logits
    # Only where a shorter sequence can save what is missing.
    shorter = ", or a shorter --seq-len" if grows_with_tokens > closest.over_by_bytes else ""
    return (
        f"no plan fits {format_bytes(usable_bytes)} a GPU; the closest is {describe_rejection(closest)}; "
        f"give GPUs with at least {format_bytes(closest.estimate.device_bytes)}, or more of them "
        f"(--gpus){shorter}"
    )
