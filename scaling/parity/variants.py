"""The ways of training that are compared, each planned for the same job on the same ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scaling.check_plan import require_installed, require_trainable
from scaling.errors import ConfigError
from strategies.decision import Decision
from strategies.errors import ScalingError
from strategies.job import LossImplementation, OptimizerName, Precision
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.search import FixedParts

CPU: Final = OffloadDevice.CPU
ZERO3: Final = FixedParts(strategy=StrategyName.ZERO3)
FSDP2: Final = FixedParts(strategy=StrategyName.FSDP2, reshard_after_forward=True, sync_each_batch=True)
VARIANTS: Final = {
    "ddp": FixedParts(strategy=StrategyName.DDP),
    "zero1": FixedParts(strategy=StrategyName.ZERO1),
    "zero2": FixedParts(strategy=StrategyName.ZERO2),
    "zero3": ZERO3,
    "zero1-cpu-optimizer": FixedParts(strategy=StrategyName.ZERO1, offload_optimizer=CPU),
    "zero2-cpu-optimizer": FixedParts(strategy=StrategyName.ZERO2, offload_optimizer=CPU),
    "zero3-cpu-optimizer": replace(ZERO3, offload_optimizer=CPU),
    "zero3-cpu-parameters": replace(ZERO3, offload_param=CPU),
    "zero3-cpu-both": replace(ZERO3, offload_optimizer=CPU, offload_param=CPU),
    "fsdp2": FSDP2,
    "fsdp2-kept": replace(FSDP2, reshard_after_forward=False),
    "fsdp2-whole-gradients": replace(FSDP2, sync_each_batch=False),
    "fsdp2-cpu": replace(FSDP2, offload_optimizer=CPU, offload_param=CPU),
}
"""By name. ``kept``: weights stay gathered from forward to backward; ``whole-gradients``: reduced once a step."""
PlanOf = Callable[[FixedParts], Decision]
"""Plans the job with these parts given; raises ScalingError where it cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One way of training, ready to run."""

    name: str
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One way of training that was not run, or did not end."""

    name: str
    reason: str


def chosen_names(words: Sequence[str]) -> tuple[str, ...]:
    """Return the variants that ``words`` name, all of a strategy for its name; all there are for no words.

    Raises:
        ConfigError: a word names neither a variant nor a strategy.
    """
    if unknown := [word for word in words if word not in VARIANTS and word not in set(PYTORCH_STRATEGIES)]:
        raise ConfigError(
            f"--strategies has {', '.join(map(repr, unknown))}; give names out of {', '.join(VARIANTS)}, with commas, "
            f"or leave it out for all"
        )
    return tuple(name for name, parts in VARIANTS.items() if not words or {name, parts.strategy} & set(words))


def plan_variants(names: Sequence[str], plan_of: PlanOf, *, fixed: FixedParts) -> tuple[list[Planned], list[LeftOut]]:
    """Return the variants planned, with ``fixed`` parts in each, and those that cannot be trained here, with why.

    Raises:
        ScalingError: none of them can be; the reason is that of the first.
    """
    planned: list[Planned] = []
    left_out: list[LeftOut] = []
    first_error: ScalingError | None = None
    for name in names:
        try:
            planned.append(Planned(name=name, decision=_plan(name, plan_of, fixed)))
        except ScalingError as error:
            first_error = first_error or error
            left_out.append(LeftOut(name=name, reason=str(error)))
    if first_error and not planned:
        raise first_error
    return planned, left_out


def _plan(name: str, plan_of: PlanOf, fixed: FixedParts) -> Decision:
    parts = VARIANTS[name]
    decision = plan_of(
        replace(
            parts,
            micro_batch_size=fixed.micro_batch_size,
            activation_checkpointing=fixed.activation_checkpointing,
            offload_optimizer=parts.offload_optimizer or OffloadDevice.NONE,
            offload_param=parts.offload_param or OffloadDevice.NONE,
        )
    )
    if decision.plan.strategy is StrategyName.FSDP2 and decision.job.optimizer is OptimizerName.SGD:
        # torch 2.13 does not know how its fused kernel runs on shards; the update is the same.
        decision = replace(decision, job=replace(decision.job, fused_optimizer=False))
    require_trainable(decision)
    require_installed(decision)
    return decision


def plain_decision(decision: Decision, *, keeps_passes: bool) -> Decision:
    """Return the job in one process: fp32, nothing checkpointed or offloaded, the whole global batch in one forward.

    ``keeps_passes``: in as many forwards instead as the ranks make together.
    """
    passes = decision.plan.gradient_accumulation_steps if keeps_passes else 1
    plan = replace(
        decision.plan,
        strategy=StrategyName.DDP,
        micro_batch_size=decision.job.global_batch_size // passes,
        gradient_accumulation_steps=passes,
        activation_checkpointing=ActivationCheckpointing.NONE,
        checkpoint_every=1,
        offload_optimizer=OffloadDevice.NONE,
        offload_param=OffloadDevice.NONE,
    )
    job = replace(decision.job, precision=Precision.FP32, loss=LossImplementation.STANDARD)
    return replace(decision, plan=plan, job=job, cluster=replace(decision.cluster, gpus=1, gpus_per_node=1))
