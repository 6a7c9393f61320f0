"""Does this process stand where the plan says? Launchers tell accelerate and transformers settings by environment."""

from __future__ import annotations

from collections.abc import Mapping

from strategies.decision import Decision
from strategies.emit.deepspeed import STAGES
from strategies.errors import PlanError
from strategies.plan import StrategyName

FRAMEWORKS = {
    "ACCELERATE_USE_DEEPSPEED": tuple(STAGES),
    "ACCELERATE_USE_FSDP": (StrategyName.FSDP2,),
    # Set, it would leave out DeepSpeed and FSDP without a word (accelerate 1.15.0, state.py, AcceleratorState).
    "ACCELERATE_USE_CPU": (StrategyName.DDP,),
}
"""Variables of ``accelerate launch`` by the strategies that they may be true for."""


def require_same_surroundings(
    decision: Decision, environ: Mapping[str, str], *, mixed_precision: str, counts_alone: bool
) -> None:
    """Refuse an environment that would make another run of the plan: other ranks, framework or number format.

    ``counts_alone``: a process that no launcher started counts as one rank; else it is not looked at.

    Raises:
        PlanError: names the variable, its value and the plan's.
    """
    gpus = decision.cluster.gpus
    ranks = environ.get("WORLD_SIZE") or ("1" if counts_alone else str(gpus))
    if ranks != str(gpus):
        raise PlanError(
            f"the plan is for gpus={gpus}, but this is one of {ranks} processes; start {gpus} (torchrun, accelerate "
            f"launch or deepspeed), or plan again with gpus={ranks}"
        )
    told = environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if told not in ("no", mixed_precision):
        raise PlanError(
            f"accelerate launch was told mixed_precision={told}, but the plan's precision={decision.job.precision} is "
            f"mixed_precision={mixed_precision}; set it to 'no' in the accelerate config"
        )
    for name, strategies in FRAMEWORKS.items():
        if environ.get(name, "false").lower() == "true" and decision.plan.strategy not in strategies:
            raise PlanError(
                f"{name}=true in the environment, but the plan's strategy is {decision.plan.strategy}; launch with "
                f"torchrun, or take that setting out of the accelerate config"
            )
