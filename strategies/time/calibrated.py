"""Rates and step times from a `Calibration`.

On a GPU measured rates replace those of ``configs/gpu_rates.csv``. On CPU ranks nothing runs beside anything else: the
processors that compute also move the messages, and Python runs between the operators. A step there is the sum of

- products, at the rate measured for products of their size,
- elementwise operators, at the rate that a decoder's blocks reached on tensors of that size,
- what a block, a hook and a parameter cost however few the tokens are: the bare model's share, and what the
  engine of the strategy adds in every micro batch and at the end of the step. Engines were measured one by one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from strategies.cluster import Cluster
from strategies.errors import ClusterError
from strategies.job import Job, Precision
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.time.calibration import Calibration, CollectiveKind, EngineCost
from strategies.time.rates import HOST_BYTES_PER_S, Rates
from strategies.time.work import TokenWork, token_work
from strategies.units import ceil_div

ADAM_BYTES = 30.0
"""Moved per fp32 parameter by AdamW with a 16-bit copy: what `Rates.host_bytes_per_s` counts in."""
TRAINING = 3
"""Forward, and backward with two products for each of forward's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSeconds:
    """Seconds of one optimizer step on one CPU rank, by cause."""

    matrix_s: float
    attention_s: float
    memory_bound_s: float
    recompute_s: float
    communication_s: float
    optimizer_s: float
    launch_s: float


def gpu_rates(known: Rates, calibration: Calibration) -> Rates:
    """Return ``known`` with what was measured on this machine's GPU in its place."""
    full = largest_product_rate(calibration, Precision.BF16) or known.matrix_flops_per_s
    link = _bytes_per_s(calibration, CollectiveKind.ALL_GATHER) * _ring_share(calibration.ranks)
    return replace(
        known,
        matrix_flops_per_s=full,
        fp32_matrix_flops_per_s=largest_product_rate(calibration, Precision.FP32) or known.fp32_matrix_flops_per_s,
        attention_flops_per_s=known.attention_flops_per_s * full / known.matrix_flops_per_s,
        memory_bytes_per_s=calibration.copy_bytes_per_s,
        link_bytes_per_s=link or known.link_bytes_per_s,
        pcie_bytes_per_s=calibration.pcie_bytes_per_s or known.pcie_bytes_per_s,
        host_bytes_per_s=ADAM_BYTES * calibration.host_adam_elements_per_s or HOST_BYTES_PER_S,
        nvme_bytes_per_s=calibration.disk_write_bytes_per_s or known.nvme_bytes_per_s,
        launch_s=calibration.operator_s or known.launch_s,
        origin=described(calibration),
    )


def described(calibration: Calibration) -> str:
    """Return where the times come from, as a phrase to print."""
    return (
        f"measured on this machine ({calibration.machine or calibration.device}) on {calibration.measured_at[:10]} "
        f"with {calibration.ranks} ranks by scaling calibrate"
    )


def largest_product_rate(calibration: Calibration, precision: Precision) -> float:
    """Return the best FLOP/s of a product in the format that ``precision`` computes in, 0 where none was measured."""
    return max((rate for _, rate in _product_points(calibration, precision.compute_bytes)), default=0.0)


def cpu_seconds(spec: ModelSpec, calibration: Calibration, *, cluster: Cluster, job: Job, plan: Plan) -> CpuSeconds:
    """Return the seconds of one optimizer step of ``plan`` on CPU ranks.

    With other ranks than the calibration's, collectives are scaled as a ring's are; that ranks then share other cores
    and caches is not in it.

    Raises:
        ClusterError: the strategy's engine was not measured, for instance because DeepSpeed was not installed.
    """
    engine = _engine(calibration, plan)
    micro = micro_batch(spec, calibration, job=job, plan=plan)
    steps, params = plan.gradient_accumulation_steps, spec.num_params
    ring = _ring_share(cluster.gpus) / (_ring_share(calibration.ranks) or 1.0)
    share = params / (1 if plan.strategy is StrategyName.DDP else cluster.gpus)
    update = _update_seconds(share, calibration, clips=bool(job.gradient_clipping))
    measured_share = params / (1 if plan.strategy is StrategyName.DDP else calibration.ranks)
    measured_update = _update_seconds(measured_share, calibration, clips=True)
    at_step = max(0.0, engine.step_s_per_param * params - measured_update)
    return CpuSeconds(
        matrix_s=steps * micro.matrix_s,
        attention_s=steps * micro.attention_s,
        memory_bound_s=steps * micro.memory_bound_s,
        recompute_s=steps * micro.recompute_s,
        communication_s=ring * (steps * engine.micro_batch_s_per_param * params + at_step),
        optimizer_s=update + _offload_seconds(share, calibration, plan) + engine.step_s_per_tensor * num_tensors(spec),
        launch_s=steps * (micro.launch_s + engine.micro_batch_s_per_unit * num_units(spec, plan.strategy)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Seconds of one micro batch of the bare model, by cause."""

    matrix_s: float
    attention_s: float
    memory_bound_s: float
    recompute_s: float
    launch_s: float

    @property
    def total_s(self) -> float:
        return self.matrix_s + self.attention_s + self.memory_bound_s + self.recompute_s + self.launch_s


def elementwise_bytes(spec: ModelSpec, *, job: Job, plan: Plan) -> float:
    """Return the bytes that elementwise operators of a micro batch move, without activation checkpointing."""
    work = token_work(spec, job, compiled=False)
    return plan.micro_batch_size * job.seq_len * (TRAINING * work.block_bytes + work.loss_bytes)


@lru_cache(maxsize=4096)
def micro_batch(spec: ModelSpec, calibration: Calibration, *, job: Job, plan: Plan) -> MicroBatch:
    """Return the seconds of the bare model's micro batch."""
    work = token_work(spec, job, compiled=False)
    tokens = plan.micro_batch_size * job.seq_len
    blocks = tokens * work.block_flops / _block_rate(calibration, spec, work, job=job, tokens=tokens)
    head = tokens * work.head_flops / product_rate(calibration, job.precision, tokens * work.head_flops)
    attention = tokens * work.attention_flops / _attention_rate(calibration, spec, work, job=job, tokens=tokens)
    width = job.precision.compute_bytes
    elementwise = tokens * work.block_bytes / memory_rate(calibration, job.precision, tokens * spec.hidden_size * width)
    logits = tokens * spec.vocab_size * width
    loss = tokens * work.loss_bytes / memory_rate(calibration, job.precision, logits)
    second = blocks * work.second_products_flops / max(work.block_flops, 1.0)
    share = _checkpointed_share(spec, plan)
    again = {
        ActivationCheckpointing.NONE: 0.0,
        ActivationCheckpointing.SELECTIVE: second + elementwise,
        ActivationCheckpointing.FULL: blocks + attention + elementwise,
    }[plan.activation_checkpointing]
    return MicroBatch(
        matrix_s=TRAINING * (blocks + head),
        attention_s=TRAINING * attention,
        memory_bound_s=TRAINING * elementwise + loss + calibration.weight_s_per_param * work.num_params,
        recompute_s=share * again,
        launch_s=spec.num_layers * _launch_per_block(calibration, plan, share=share),
    )


def product_rate(calibration: Calibration, precision: Precision, flops: float) -> float:
    """Return FLOP/s of a product of so many FLOPs, between the sizes that were measured.

    Raises:
        ClusterError: no product was measured in the format that ``precision`` computes in.
    """
    points = _product_points(calibration, precision.compute_bytes)
    if not points:
        raise ClusterError(f"the calibration of {calibration.device} has no products for precision={precision}")
    return between(points, flops)


def memory_rate(calibration: Calibration, precision: Precision, num_bytes: float) -> float:
    """Return bytes/s of elementwise operators on tensors of ``num_bytes``."""
    points = _memory_points(calibration, precision.compute_bytes) or _memory_points(calibration, 4)
    return between(points, num_bytes) if points else calibration.copy_bytes_per_s


def between(points: Sequence[tuple[float, float]], size: float) -> float:
    """Return the rate at ``size``: linear in the logarithms between two points, constant outside.

    >>> between([(1.0, 10.0), (100.0, 1000.0)], 10.0)
    100.0
    >>> between([(1.0, 10.0), (100.0, 1000.0)], 1e6)
    1000.0
    """
    index = bisect_left(points, (size, 0.0))
    if index in (0, len(points)):
        return points[min(index, len(points) - 1)][1]
    (low, slow), (high, fast) = points[index - 1], points[index]
    part = math.log(size / low) / math.log(high / low)
    return float(round(slow * (fast / slow) ** part, 9))


@lru_cache(maxsize=64)
def _product_points(calibration: Calibration, width: int) -> tuple[tuple[float, float], ...]:
    return tuple(
        sorted((each.flops, each.flops_per_s) for each in calibration.products if each.precision.compute_bytes == width)
    )


@lru_cache(maxsize=64)
def _memory_points(calibration: Calibration, width: int) -> tuple[tuple[float, float], ...]:
    found = [each for each in calibration.elementwise if each.precision.compute_bytes == width]
    return tuple(sorted((each.num_bytes, each.bytes_per_s) for each in found))


def _block_rate(calibration: Calibration, spec: ModelSpec, work: TokenWork, *, job: Job, tokens: int) -> float:
    """Return the rate of the mean product of a block."""
    products = spec.num_layers * _products_per_block(spec)
    return product_rate(calibration, job.precision, tokens * work.block_flops / products)


def _attention_rate(calibration: Calibration, spec: ModelSpec, work: TokenWork, *, job: Job, tokens: int) -> float:
    """Return the rate of the products of one head's attention, which one kernel computes sample by sample."""
    heads = 2 * spec.num_layers * spec.num_attention_heads * max(1, tokens // job.seq_len)
    return product_rate(calibration, job.precision, max(1.0, tokens * work.attention_flops / heads))


@lru_cache(maxsize=256)
def _products_per_block(spec: ModelSpec) -> float:
    """Return how many matrices a block multiplies with: of experts, those of one token."""
    matrices = sum(
        group.num_copies * sum(len(tensor.shape) > 1 for tensor in group.tensors)
        for group in spec.groups
        if group.num_copies > 1 or len(spec.groups) < 3
    )
    return max(1.0, matrices / spec.num_layers)


@lru_cache(maxsize=256)
def num_tensors(spec: ModelSpec) -> int:
    """Return the parameter tensors of the model."""
    return sum(group.num_copies * len(group.tensors) for group in spec.groups)


@lru_cache(maxsize=1024)
def num_units(spec: ModelSpec, strategy: StrategyName) -> int:
    """Return how many places of the model an engine hooks into in every micro batch.

    FSDP2: the blocks and the rest. Stage 3: every module that has parameters of its own. The others: every parameter.
    """
    if strategy is StrategyName.FSDP2:
        return spec.num_layers + 1
    if strategy is not StrategyName.ZERO3:
        return num_tensors(spec)
    modules = ({tensor.name.rpartition(".")[0] for tensor in group.tensors} for group in spec.groups)
    return sum(group.num_copies * len(names) for group, names in zip(spec.groups, modules, strict=True))


def _checkpointed_share(spec: ModelSpec, plan: Plan) -> float:
    if plan.activation_checkpointing is ActivationCheckpointing.NONE:
        return 0.0
    return ceil_div(spec.num_layers, plan.checkpoint_every) / spec.num_layers


def _launch_per_block(calibration: Calibration, plan: Plan, *, share: float) -> float:
    costs = {each.activation_checkpointing: each.s_per_block for each in calibration.model}
    plain = costs.get(ActivationCheckpointing.NONE, 0.0)
    return plain + share * (costs.get(plan.activation_checkpointing, plain) - plain)


def _engine(calibration: Calibration, plan: Plan) -> EngineCost:
    reshards = plan.reshard_after_forward or plan.strategy is not StrategyName.FSDP2
    for each in calibration.engines:
        is_same = each.strategy is plan.strategy and each.activation_checkpointing is plan.activation_checkpointing
        if is_same and each.reshard_after_forward is reshards:
            return each
    raise ClusterError(
        f"the calibration of {calibration.device} has no engine of strategy={plan.strategy} with "
        f"activation_checkpointing={plan.activation_checkpointing}; install what it needs and run `scaling calibrate`"
    )


def _ring_share(ranks: int) -> float:
    """Return what part of a tensor a rank of a ring receives."""
    return (ranks - 1) / ranks


def _update_seconds(num_params: float, calibration: Calibration, *, clips: bool) -> float:
    norm = num_params / calibration.norm_elements_per_s if clips and calibration.norm_elements_per_s else 0.0
    return num_params / calibration.adam_elements_per_s + norm


def _offload_seconds(share: float, calibration: Calibration, plan: Plan) -> float:
    """Return the seconds of states that rest elsewhere: host memory is the ranks' own, a disk is not."""
    if plan.offload_optimizer is not OffloadDevice.NVME or not calibration.disk_write_bytes_per_s:
        return 0.0
    read = calibration.disk_read_bytes_per_s or calibration.disk_write_bytes_per_s
    return calibration.ranks * share * 8 * (1 / calibration.disk_write_bytes_per_s + 1 / read)


def _bytes_per_s(calibration: Calibration, kind: CollectiveKind) -> float:
    """Return bytes/s between the two largest sizes of a collective, so that its latency does not count; 0: unknown."""
    points = sorted((each.num_bytes, each.seconds) for each in calibration.collectives if each.kind is kind)
    if len(points) < 2 or points[-1][1] <= points[-2][1]:
        return 0.0
    return (points[-1][0] - points[-2][0]) / (points[-1][1] - points[-2][1])
