"""Say why, in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator

from strategies.cluster import Cluster
from strategies.decision import Decision, Rejection, Resource, Suggestion
from strategies.estimate import PhaseBytes
from strategies.job import Job, LossImplementation
from strategies.plan import REPLICATED, ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.time.step_time import StepTime
from strategies.units import KIB, ceil_div, format_bytes, format_seconds


def describe_plan(plan: Plan, loss: LossImplementation = LossImplementation.STANDARD) -> str:
    """Return a plan as one phrase; the loss only where it is not the framework's own.

    Example: ``zero2, activation checkpointing full, micro batch 4 x accumulation 2``.
    """
    batch = f"micro batch {plan.micro_batch_size} x accumulation {plan.gradient_accumulation_steps}"
    return f"{describe_variant(plan, loss)}, {batch}"


def describe_variant(plan: Plan, loss: LossImplementation = LossImplementation.STANDARD) -> str:
    """Return a plan as one phrase without its micro batch."""
    checkpointing = (
        "no activation checkpointing"
        if plan.activation_checkpointing is ActivationCheckpointing.NONE
        else f"activation checkpointing {plan.activation_checkpointing}"
    )
    if plan.checkpoint_every > 1:
        checkpointing += f" of one block in {plan.checkpoint_every}"
    own_loss = () if loss is LossImplementation.STANDARD else (f"{loss} loss",)
    return ", ".join((describe_kind(plan), checkpointing, *own_loss))


def describe_kind(plan: Plan) -> str:
    """Return strategy and offload as one phrase."""
    return ", ".join((str(plan.strategy), *_placements(plan)))


def _placements(plan: Plan) -> Iterator[str]:
    if plan.strategy is StrategyName.FSDP2 and not plan.reshard_after_forward:
        yield "weights kept after forward"
    if plan.strategy is StrategyName.FSDP2 and not plan.sync_each_batch:
        yield "gradients reduced once a step"
    if plan.offload_optimizer is not OffloadDevice.NONE:
        yield f"optimizer on {plan.offload_optimizer}"
    if plan.offload_param is not OffloadDevice.NONE:
        yield f"parameters on {plan.offload_param}"


def describe_trained(job: Job) -> str:
    """Return what is trained as a phrase, empty where it is the whole model.

    Example: ``LoRA rank 8 on q_proj, v_proj``.
    """
    if job.lora:
        return f"LoRA rank {job.lora.rank} on {', '.join(job.lora.target_modules)}"
    return f"frozen {', '.join(job.freeze)}" if job.freeze else ""


def at_safety(safety: float) -> str:
    """Return the words behind bytes that are the upper end of an interval; none where they are the point estimate."""
    return f" at safety {safety:g}" if safety else ""


def needs(device_bytes: int, needed_bytes: int, *, safety: float) -> str:
    """Return what a plan needs of a GPU: the point estimate, and beside it what had to fit.

    Example: ``needs 57.00 GiB, 68.80 GiB at safety 0.9``.
    """
    upper = f", {format_bytes(needed_bytes)}{at_safety(safety)}" if safety else ""
    return f"needs {format_bytes(device_bytes)}{upper}"


def describe_rejection(rejection: Rejection, *, safety: float) -> str:
    """Return one rejected plan as a sentence: what it needs, by how much it is over, and its two largest causes.

    ``safety``: of the decision that rejected it; host memory has no margin.
    """
    needed, over = format_bytes(rejection.needed_bytes), format_bytes(rejection.over_by_bytes)
    plan = describe_plan(rejection.plan, rejection.loss)
    if rejection.resource is Resource.HOST_MEMORY:
        return f"{plan}: needs {needed} of host memory a node, {over} over"
    if rejection.resource is Resource.LOCKED_MEMORY:
        return f"{plan}: needs {needed} of locked memory a rank, {over} over what `ulimit -l` allows"
    at_least = "at least " if rejection.is_lower_bound else ""
    return f"{plan}: needs {at_least}{needed}{at_safety(safety)}, {over} over ({largest_causes(rejection.peak)})"


def largest_causes(phase: PhaseBytes, *, count: int = 2) -> str:
    """Return the largest causes of a phase, as ``in backward: activations 3.10 GiB, parameters 2.00 GiB``."""
    ranked = sorted(phase.causes.items(), key=lambda item: -item[1])[:count]
    parts = ", ".join(f"{cause.replace('_', ' ')} {format_bytes(num_bytes)}" for cause, num_bytes in ranked)
    return f"in {phase.phase.replace('_', ' ')}: {parts}"


def largest_seconds(time: StepTime, *, count: int = 2) -> str:
    """Return the largest causes of a step's time, as ``matrix products 2.10 s, memory-bound work 0.80 s``."""
    seconds = {cause: getattr(time, name) for name, cause in CAUSES_OF_TIME.items()}
    ranked = sorted(seconds.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{cause} {format_seconds(value, digits=3)}" for cause, value in ranked)


CAUSES_OF_TIME = {
    "matrix_s": "matrix products",
    "attention_s": "attention",
    "memory_bound_s": "memory-bound work",
    "recompute_s": "computing again",
    "communication_s": "communication",
    "optimizer_s": "optimizer step",
    "launch_s": "launching kernels",
}


def suggestion_line(suggestion: Suggestion) -> str:
    """Return one suggestion: what to type, what is needed then, the speed, and the plan."""
    speed = ""
    if suggestion.time is not None:
        rate = suggestion.job.tokens_per_step / suggestion.time.total_s
        speed = f", {format_seconds(suggestion.time.total_s)} a step ({rate:,.0f} tokens/s)"
    flags = " ".join(suggestion.changes)
    needed = needs(suggestion.device_bytes, suggestion.needed_bytes, safety=suggestion.safety)
    return f"{flags}: {needed}{speed} with {describe_variant(suggestion.plan, suggestion.job.loss)}"


def why(decision: Decision) -> list[str]:
    """Return why each kind of plan that does not fit was rejected; empty where every kind fits."""
    return [describe_rejection(rejection, safety=decision.safety) for rejection in decision.rejected]


def nothing_fits(rejected: tuple[Rejection, ...], *, cluster: Cluster, safety: float) -> str:
    """Return the message for a job that fits nowhere: the closest plan, what it lacks, what decides its peak."""
    usable_bytes = cluster.gpu.memory_bytes
    closest = min(rejected, key=closeness)
    told = describe_rejection(closest, safety=safety)
    if closest.resource is Resource.HOST_MEMORY:
        host = format_bytes(cluster.host_memory_bytes or 0)
        return (
            f"no plan fits {format_bytes(usable_bytes)} a GPU and {host} of host memory a node; the closest is "
            f"{told}; give nodes with more (--host-memory-gib) or with fewer GPUs (--gpus-per-node)"
        )
    if closest.resource is Resource.LOCKED_MEMORY:
        kibibytes = ceil_div(closest.needed_bytes, KIB)
        return f"no plan fits; the closest is {told}; raise it (ulimit -l {kibibytes}), or offload to the CPU"
    whole = f". {_replicated(closest)}" if closest.plan.strategy in REPLICATED and _is_named(rejected) else ""
    return f"no plan fits {format_bytes(usable_bytes)} a GPU{at_safety(safety)}; the closest is {told}{whole}"


def _is_named(rejected: tuple[Rejection, ...]) -> bool:
    """Whether only one strategy was looked at."""
    return len({rejection.plan.strategy for rejection in rejected}) == 1


def _replicated(rejection: Rejection) -> str:
    """Return how much of a plan's peak is model states that it keeps whole on every GPU."""
    causes = rejection.peak.causes
    states = (
        causes.parameters
        + causes.master_weights
        + causes.gradients
        + causes.gradient_accumulation
        + causes.optimizer_states
    )
    return (
        f"{rejection.plan.strategy} keeps all model states on every GPU, {format_bytes(states)} at that moment; only "
        f"sharding them (zero1, zero2, zero3, fsdp2) makes them fewer"
    )


def closeness(rejection: Rejection) -> tuple[bool, bool, int]:
    """Return a key that is lower for what is closer.

    A floor says less than an estimate; what fits the GPUs and lacks host memory only is closer than anything else.
    """
    return rejection.is_lower_bound, rejection.resource is Resource.GPU_MEMORY, rejection.over_by_bytes
