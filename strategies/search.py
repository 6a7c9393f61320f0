"""Every legal plan for a job on a cluster, in order of preference: simplest strategy first, then least recompute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strategies.cluster import Cluster
from strategies.errors import PlanError
from strategies.job import Job
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName, accumulation_steps
from strategies.registry import STRATEGIES
from strategies.units import ceil_div

SEARCHED_STRATEGIES = (StrategyName.DDP, StrategyName.ZERO1, StrategyName.ZERO2, StrategyName.ZERO3)
SEARCHED_CHECKPOINTING = (ActivationCheckpointing.NONE, ActivationCheckpointing.FULL)
"""What is tried where the user names nothing. Others are taken where they are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedParts:
    """Parts of the plan that the user has decided; None leaves a part to the search. Obeyed or refused."""

    strategy: StrategyName | None = None
    activation_checkpointing: ActivationCheckpointing | None = None
    micro_batch_size: int | None = None
    checkpoint_every: int = 1
    reshard_after_forward: bool = True
    offload_optimizer: OffloadDevice = OffloadDevice.NONE
    offload_param: OffloadDevice = OffloadDevice.NONE


def candidates(spec: ModelSpec, *, cluster: Cluster, job: Job, fixed: FixedParts) -> Iterator[Plan]:
    """Yield plans, best first: strategy, then activation checkpointing, then micro batch from large to small.

    Raises:
        PlanError: the global batch cannot be split over the GPUs, or not with the fixed micro batch.
    """
    micro_batch_sizes = _micro_batch_sizes(cluster, job, fixed)
    for name in SEARCHED_STRATEGIES if fixed.strategy is None else (fixed.strategy,):
        strategy = STRATEGIES[name]
        buckets = strategy.buckets(spec, job)
        given = fixed.activation_checkpointing
        for checkpointing in SEARCHED_CHECKPOINTING if given is None else (given,):
            for micro_batch_size in micro_batch_sizes:
                yield Plan(
                    strategy=name,
                    micro_batch_size=micro_batch_size,
                    gradient_accumulation_steps=job.global_batch_size // (micro_batch_size * cluster.gpus),
                    activation_checkpointing=checkpointing,
                    checkpoint_every=fixed.checkpoint_every,
                    reshard_after_forward=fixed.reshard_after_forward,
                    offload_optimizer=fixed.offload_optimizer,
                    offload_param=fixed.offload_param,
                    buckets=buckets,
                )


def _micro_batch_sizes(cluster: Cluster, job: Job, fixed: FixedParts) -> list[int]:
    """Return every micro batch that divides a rank's share of the global batch, largest first."""
    if fixed.micro_batch_size is not None:
        if fixed.micro_batch_size <= 0:
            raise PlanError(f"micro_batch_size={fixed.micro_batch_size} must be above zero; give a whole number")
        accumulation_steps(
            global_batch_size=job.global_batch_size,
            micro_batch_size=fixed.micro_batch_size,
            data_parallel_size=cluster.gpus,
        )
        return [fixed.micro_batch_size]
    share, remainder = divmod(job.global_batch_size, cluster.gpus)
    if remainder or not share:
        above = ceil_div(job.global_batch_size, cluster.gpus) * cluster.gpus
        below = share * cluster.gpus
        choices = f"{below} or {above}" if below else str(above)
        raise PlanError(
            f"global_batch_size={job.global_batch_size} does not divide over gpus={cluster.gpus}; "
            f"give a multiple of {cluster.gpus}, for instance {choices}"
        )
    return _divisors(share)[::-1]


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]
