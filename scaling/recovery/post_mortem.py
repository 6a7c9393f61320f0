"""Why a run ran out of memory, in words: what was predicted, what was measured, and which changes would fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scaling.check_plan import why_not_trainable
from scaling.recovery.failure import Failure
from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.errors import ScalingError
from strategies.estimate import Estimate, MemoryProfile, Phase
from strategies.explain import describe_variant, largest_causes, suggestion_line
from strategies.job import Job
from strategies.load_model import model_spec, resolve_model
from strategies.plan import Plan, StrategyName
from strategies.planner.changes import what_if
from strategies.planner.sweep import Question
from strategies.search import FixedParts
from strategies.units import format_bytes

NUM_CAUSES = 4
SMALLER = 0.95
"""Of the estimate that was too low: what a change must come down to, to be worth a try."""


def post_mortem(failure: Failure, decision: Decision, *, micro_batch_size: int, measured: MemoryProfile | None) -> str:
    """Return the lines that a run ends with; ``measured``: of this rank's metered steps, None where nothing was."""
    lines = [
        f"{failure}: {why_not_again(failure, decision, micro_batch_size=micro_batch_size)}",
        f"  the allocator says: {failure.allocator}",
        f"  predicted peak: {format_bytes(decision.estimate.peak_allocated_bytes)} "
        f"({largest_causes(decision.estimate.memory.peak, count=NUM_CAUSES)})",
        f"  measured peak: {_measured(failure, measured)}",
        f"  plan: {describe_variant(decision.plan, decision.job.loss)}, micro_batch_size={micro_batch_size}",
    ]
    return "\n".join([*lines, *_changes(decision, micro_batch_size=micro_batch_size)])


def why_not_again(failure: Failure, decision: Decision, *, micro_batch_size: int) -> str:
    """Return why the step was not done again in smaller micro batches."""
    match failure.phase:
        case Phase.OPTIMIZER_STEP:
            return "the update may be half done, so the step cannot be done again"
        case Phase.FORWARD | Phase.BACKWARD if micro_batch_size == 1:
            return "micro_batch_size=1 cannot be halved"
        case Phase.FORWARD | Phase.BACKWARD if decision.plan.strategy is StrategyName.ZERO3:
            return "a step cannot be begun again under zero3"
        case Phase.FORWARD | Phase.BACKWARD:
            return "smaller micro batches would not be the same training, or did not fit either"
        case _:
            return "a smaller micro batch does not help there"


def _measured(failure: Failure, measured: MemoryProfile | None) -> str:
    found = []
    if failure.reserved_bytes is not None and failure.allocated_bytes is not None:
        found.append(
            f"{format_bytes(failure.allocated_bytes)} allocated and {format_bytes(failure.reserved_bytes)} reserved "
            f"when it failed"
        )
    if measured is not None and measured.phases:
        found.append(f"{format_bytes(measured.peak_bytes)} before ({largest_causes(measured.peak, count=NUM_CAUSES)})")
    return "; ".join(found) or "nothing counts it on this device"


def _changes(decision: Decision, *, micro_batch_size: int) -> list[str]:
    """Return what the planner would change, held to an estimate that is lower than the one that was too low."""
    try:
        found = what_if(_question(decision, micro_batch_size=micro_batch_size))
    except ScalingError:
        return []  # a family or setting without closed forms
    if not found:
        return ["  no single change, and no two together, would need less"]
    limit = format_bytes(_limit_bytes(decision.estimate, decision.cluster))
    return [
        f"  changes that need at most {limit}, for `scaling plan`:",
        *(f"    {suggestion_line(each)}" for each in found),
    ]


def _question(decision: Decision, *, micro_batch_size: int) -> Question:
    plan = decision.plan
    limit = _limit_bytes(decision.estimate, decision.cluster)
    return Question(
        spec=model_spec(resolve_model(decision.model)),
        cluster=replace(decision.cluster, gpu=replace(decision.cluster.gpu, memory_bytes=limit)),
        job=decision.job,
        fixed=FixedParts(
            strategy=plan.strategy,
            activation_checkpointing=plan.activation_checkpointing,
            micro_batch_size=micro_batch_size,
            offload_optimizer=plan.offload_optimizer,
            offload_param=plan.offload_param,
        ),
        safety=0.0,  # the margin is in the limit
        why_not=_why_not(decision),
    )


def _limit_bytes(estimate: Estimate, cluster: Cluster) -> int:
    return int(SMALLER * min(estimate.device_bytes, cluster.gpu.memory_bytes))


def _why_not(decision: Decision) -> Callable[[Job, Plan], str | None]:
    return lambda job, plan: why_not_trainable(replace(decision, job=job, plan=plan))
