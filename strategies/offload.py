"""Which strategy can rest which states off the device."""

from __future__ import annotations

from strategies.errors import PlanError
from strategies.plan import OffloadDevice, Plan, StrategyName

_NONE, _CPU, _NVME = OffloadDevice.NONE, OffloadDevice.CPU, OffloadDevice.NVME
POSSIBLE: dict[StrategyName, frozenset[tuple[OffloadDevice, OffloadDevice]]] = {
    StrategyName.DDP: frozenset({(_NONE, _NONE)}),
    StrategyName.ZERO1: frozenset({(_NONE, _NONE), (_CPU, _NONE)}),
    StrategyName.ZERO2: frozenset({(_NONE, _NONE), (_CPU, _NONE)}),
    StrategyName.ZERO3: frozenset((optimizer, param) for optimizer in OffloadDevice for param in OffloadDevice),
    # CPUOffloadPolicy moves weights, gradients and with them the optimizer states: all or nothing.
    StrategyName.FSDP2: frozenset({(_NONE, _NONE), (_NONE, _CPU), (_CPU, _CPU)}),
    StrategyName.MIRRORED: frozenset({(_NONE, _NONE)}),
}
"""(offload_optimizer, offload_param) by strategy. NVMe needs stage 3 (deepspeed 0.19.8, runtime/zero/config.py)."""


def require_possible_offload(plan: Plan) -> None:
    """Refuse states in places that the strategy cannot put them.

    Raises:
        PlanError: names both settings and what the strategy can do.
    """
    if (plan.offload_optimizer, plan.offload_param) in POSSIBLE[plan.strategy]:
        return
    raise impossible_offload(plan.strategy, plan.offload_optimizer, plan.offload_param)


def impossible_offload(strategy: StrategyName, optimizer: str, param: str) -> PlanError:
    """Return the error for states in places where the strategy cannot put them; a place may be ``any``."""
    choices = " or ".join(
        f"offload_optimizer={optimizer}, offload_param={param}" for optimizer, param in sorted(POSSIBLE[strategy])
    )
    return PlanError(
        f"strategy {strategy} cannot run with offload_optimizer={optimizer} and offload_param={param}; "
        f"give {choices}, or strategy zero3"
    )
