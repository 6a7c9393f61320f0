"""The plan itself: whether this program trains it at all, before anything is said about the machine."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.check_plan import check_batch, require_trainable
from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Area, Examined, Finding, error, examined
from strategies.errors import ScalingError
from strategies.explain import describe_variant


def examine(asked: Asked) -> Examined:
    plan = asked.plan
    if plan is None:
        return examined(Area.PLAN, ())
    decision = plan.decision
    return examined(
        Area.PLAN,
        findings(plan),
        variant=describe_variant(decision.plan, decision.job.loss),
        ranks_per_node=plan.ranks,
        nodes=plan.num_nodes,
        gpu=decision.cluster.gpu.name,
        needs_of_a_device_bytes=plan.device_bytes,
    )


def findings(plan: Needs) -> Iterator[Finding]:
    """Yield what keeps the plan from being trained on any machine."""
    try:
        check_batch(plan.decision)
        if not plan.runs_tensorflow:
            require_trainable(plan.decision)
    except ScalingError as problem:
        what, _, fix = str(problem).rpartition("; ")
        yield error(what or fix, fix if what else "plan again")
