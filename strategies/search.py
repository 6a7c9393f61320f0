"""Every legal plan for a job on a cluster, simplest first.

A *variant* is everything about a plan but its micro batch. One variant is simpler than another if, looking at these
in turn, the first that differs says so: less is offloaded (nothing, optimizer states, weights, both; host memory before
NVMe); the strategy stands earlier in `strategies.registry` (ddp, zero1, zero2, zero3, fsdp2); blocks give their
weights back after forward; gradients are reduced after every micro batch; less is computed again (none, selective,
full); the loss is the framework's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from strategies.cluster import Cluster
from strategies.errors import PlanError
from strategies.job import Job, LossImplementation
from strategies.mirrored_limits import CHECKPOINTINGS, as_run, require_possible
from strategies.model_spec import ModelSpec
from strategies.offload import POSSIBLE, impossible_offload
from strategies.plan import (
    PYTORCH_STRATEGIES,
    ActivationCheckpointing,
    Buckets,
    Framework,
    OffloadDevice,
    Plan,
    StrategyName,
    accumulation_steps,
)
from strategies.registry import STRATEGIES
from strategies.units import ceil_div

FUSED_LOSS_FAMILIES = frozenset(
    {
        "cohere", "falcon", "gemma", "gemma2", "gpt2", "gpt_neox", "gptj", "granite", "llama", "mistral", "mixtral",
        "olmo2", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "stablelm", "starcoder2",
    }
)  # fmt: skip
"""Whose logits are the head's product with the last hidden state: tested with the trainer's fused loss, one by one."""

_NONE, _CPU, _NVME = OffloadDevice
_FSDP2_WEIGHTS_ALONE = (_NONE, _CPU)
"""The same as offloading both: FSDP2's policy moves states with weights. Taken where it is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedParts:
    """Parts of the plan that the user has decided; None leaves a part to the search. Obeyed or refused."""

    strategy: StrategyName | None = None
    activation_checkpointing: ActivationCheckpointing | None = None
    micro_batch_size: int | None = None
    checkpoint_every: int | None = None
    """None: every block of those that are checkpointed."""
    reshard_after_forward: bool | None = None
    sync_each_batch: bool | None = None
    offload_optimizer: OffloadDevice | None = None
    offload_param: OffloadDevice | None = None
    searches_loss: bool = False
    """Whether the loss is open too; else it is the job's."""


def named_strategy(framework: Framework | None, strategy: StrategyName | None) -> StrategyName | None:
    """Return the strategy that a framework and a strategy name together; None where the search is to choose.

    Raises:
        PlanError: the strategy is another framework's.
    """
    if strategy is None:
        return StrategyName.MIRRORED if framework is Framework.TENSORFLOW else None
    if framework not in (None, strategy.framework):
        has = " or ".join(name for name in StrategyName if name.framework is framework)
        raise PlanError(f"strategy={strategy} is {strategy.framework}'s, and framework={framework} has {has}; give one")
    return strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A plan without its micro batch, and the job with its loss."""

    job: Job
    strategy: StrategyName
    activation_checkpointing: ActivationCheckpointing
    checkpoint_every: int
    reshard_after_forward: bool
    sync_each_batch: bool
    offload_optimizer: OffloadDevice
    offload_param: OffloadDevice
    buckets: Buckets

    def plan(self, micro_batch_size: int, *, gpus: int, buckets: Buckets | None = None) -> Plan:
        """Return the plan with a micro batch that divides a rank's share of the global batch."""
        return Plan(
            strategy=self.strategy,
            micro_batch_size=micro_batch_size,
            gradient_accumulation_steps=self.job.global_batch_size // (micro_batch_size * gpus),
            activation_checkpointing=self.activation_checkpointing,
            checkpoint_every=self.checkpoint_every,
            reshard_after_forward=self.reshard_after_forward,
            sync_each_batch=self.sync_each_batch,
            offload_optimizer=self.offload_optimizer,
            offload_param=self.offload_param,
            buckets=buckets or self.buckets,
        )


def candidates(spec: ModelSpec, *, cluster: Cluster, job: Job, fixed: FixedParts) -> Iterator[Plan]:
    """Yield every plan for ``job`` as it is: variants from simple to less simple, micro batches from large to small.

    Raises:
        PlanError: the global batch cannot be split over the GPUs, or fixed parts contradict each other.
    """
    sizes = micro_batch_sizes(cluster, job, fixed)
    for variant in variants(spec, cluster=cluster, job=job, fixed=replace(fixed, searches_loss=False)):
        for size in sizes_of(variant, sizes, cluster=cluster, fixed=fixed):
            yield variant.plan(size, gpus=cluster.gpus)


def sizes_of(variant: Variant, sizes: list[int], *, cluster: Cluster, fixed: FixedParts) -> list[int]:
    """Return the micro batches at which a variant is not the same as a simpler one that is tried too."""
    if variant.sync_each_batch or fixed.sync_each_batch is not None:
        return sizes
    share = variant.job.global_batch_size // cluster.gpus
    return [size for size in sizes if size < share]


def variants(spec: ModelSpec, *, cluster: Cluster, job: Job, fixed: FixedParts) -> list[Variant]:
    """Return every variant that obeys the fixed parts, simplest first.

    Raises:
        PlanError: there is none.
    """
    _require_consistent(fixed)
    if fixed.strategy is StrategyName.MIRRORED:
        require_possible(spec, cluster=cluster, job=job)
    buckets = {name: STRATEGIES[name].buckets(spec, job) for name in _strategies(fixed)}
    found = [
        Variant(
            job=job_with_loss,
            strategy=name,
            activation_checkpointing=checkpointing,
            checkpoint_every=fixed.checkpoint_every or 1,
            reshard_after_forward=reshard,
            sync_each_batch=sync,
            offload_optimizer=optimizer,
            offload_param=param,
            buckets=buckets[name],
        )
        for (optimizer, param), name in product(_places(cluster, fixed), _strategies(fixed))
        if _is_searched(name, (optimizer, param), fixed)
        for reshard in _reshards(name, fixed)
        for sync in _syncs(name, cluster, job, fixed)
        for checkpointing in _checkpointings(name, fixed)
        for job_with_loss in _jobs(spec, as_run(job, name), fixed)
    ]
    if not found:
        # Every pair of places is possible under some strategy: one must have been named.
        strategy = fixed.strategy or _strategies(fixed)[0]
        raise impossible_offload(strategy, fixed.offload_optimizer or "any", fixed.offload_param or "any")
    return found


def _strategies(fixed: FixedParts) -> tuple[StrategyName, ...]:
    if fixed.strategy is not None:
        return (fixed.strategy,)
    # Only FSDP2 can keep its weights after forward, or whole gradients: the others cannot obey.
    needs_fsdp2 = False in (fixed.reshard_after_forward, fixed.sync_each_batch)
    return (StrategyName.FSDP2,) if needs_fsdp2 else PYTORCH_STRATEGIES


def _reshards(name: StrategyName, fixed: FixedParts) -> tuple[bool, ...]:
    if fixed.reshard_after_forward is not None:
        return (fixed.reshard_after_forward,)
    return (True, False) if name is StrategyName.FSDP2 else (True,)


def _syncs(name: StrategyName, cluster: Cluster, job: Job, fixed: FixedParts) -> tuple[bool, ...]:
    if fixed.sync_each_batch is not None:
        return (fixed.sync_each_batch,)
    accumulates = job.global_batch_size > cluster.gpus * (fixed.micro_batch_size or 1)
    return (True, False) if name is StrategyName.FSDP2 and accumulates else (True,)


def _checkpointings(name: StrategyName, fixed: FixedParts) -> tuple[ActivationCheckpointing, ...]:
    if fixed.activation_checkpointing is not None:
        return (fixed.activation_checkpointing,)
    every_kind = CHECKPOINTINGS if name.framework is Framework.TENSORFLOW else tuple(ActivationCheckpointing)
    return every_kind if (fixed.checkpoint_every or 1) == 1 else every_kind[1:]


def _places(cluster: Cluster, fixed: FixedParts) -> list[tuple[OffloadDevice, OffloadDevice]]:
    """Return where optimizer states and weights may rest, what is simplest first.

    A CPU rank's memory is the host's already, so that nothing is gained there. NVMe is for those who name it.
    """
    searched = (_NONE,) if cluster.gpu.is_cpu else (_NONE, _CPU)
    optimizer = searched if fixed.offload_optimizer is None else (fixed.offload_optimizer,)
    param = searched if fixed.offload_param is None else (fixed.offload_param,)
    order = list(OffloadDevice)
    places = product(optimizer, param)
    return sorted(places, key=lambda pair: (_NVME in pair, pair[1] is not _NONE, *map(order.index, pair)))


def _is_searched(name: StrategyName, places: tuple[OffloadDevice, OffloadDevice], fixed: FixedParts) -> bool:
    is_named = fixed.offload_optimizer is not None and fixed.offload_param is not None
    if name is StrategyName.FSDP2 and places == _FSDP2_WEIGHTS_ALONE and not is_named:
        return False
    return places in POSSIBLE[name]


def _jobs(spec: ModelSpec, job: Job, fixed: FixedParts) -> tuple[Job, ...]:
    if not fixed.searches_loss:
        return (job,)
    losses = [LossImplementation.STANDARD]
    if spec.family in FUSED_LOSS_FAMILIES and fixed.strategy is not StrategyName.MIRRORED:
        losses.append(LossImplementation.FUSED)
    return tuple(replace(job, loss=loss) for loss in losses)


def _require_consistent(fixed: FixedParts) -> None:
    """Refuse fixed parts that have no effect beside others, or that the strategy cannot obey."""
    for part in ("reshard_after_forward", "sync_each_batch"):
        if getattr(fixed, part) is False and fixed.strategy not in (None, StrategyName.FSDP2):
            raise PlanError(
                f"{part}=False has no meaning under strategy {fixed.strategy}; leave it out, or give strategy fsdp2"
            )
    every = 1 if fixed.checkpoint_every is None else fixed.checkpoint_every
    if every < 1:
        raise PlanError(f"checkpoint_every={every} must be above zero; give a whole number, or leave it out")
    if every > 1 and fixed.activation_checkpointing is ActivationCheckpointing.NONE:
        raise PlanError(
            f"checkpoint_every={every} has no meaning with activation_checkpointing=none; "
            f"leave it out, or give activation_checkpointing selective or full"
        )


def micro_batch_sizes(cluster: Cluster, job: Job, fixed: FixedParts) -> list[int]:
    """Return every micro batch that divides a rank's share of the global batch, largest first.

    Raises:
        PlanError: the global batch cannot be split over the GPUs, or not with the fixed micro batch.
    """
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
    return divisors(share)[::-1]


def divisors(number: int) -> list[int]:
    """Return every divisor, smallest first."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]
