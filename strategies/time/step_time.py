"""`step_time`: seconds per optimizer step by cause.

A micro batch runs forward, then backward; in each, communication runs beside computation and only what it adds counts.
The optimizer step follows the last micro batch. Work is summed, not overlapped: matrix products, attention and
elementwise kernels follow each other on one stream.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from strategies.adapt import as_trained
from strategies.cluster import Cluster
from strategies.job import Attention, Job, Precision
from strategies.mirrored_limits import as_run
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.time.calibrated import cpu_seconds, num_units
from strategies.time.calibration import Calibration, calibration_for
from strategies.time.communication import fabric
from strategies.time.correction import StepCorrection
from strategies.time.known import rates_for, time_source, times_known
from strategies.time.measured_rates import largest_product_rate
from strategies.time.optimizer_step import optimizer_seconds
from strategies.time.rates import Rates
from strategies.time.traffic import traffic
from strategies.time.work import TokenWork, checkpointed_share, token_work

__all__ = ["StepTime", "step_time", "time_source", "times_known"]

ATTENTION_BACKWARD = 2.5
"""Over forward: five products instead of two, as the scores are computed again inside the kernel (Dao 2023,
arXiv:2307.08691, section 4.1)."""
EAGER_ATTENTION_SHARE = 0.5
"""Of the rate of large products, for products with the width of one head."""
KERNELS_PER_BLOCK = 60
"""Launched in one block's forward by an eager Hugging Face decoder: 7 products, 2 norms of 6, rotation, casts."""
COMPILED_KERNELS_PER_BLOCK = 15
STAGE3_KERNELS_PER_MODULE = 20.0
"""A third of what a micro batch costs at each module: hooks before and after it, the search for what to fetch.
``scaling calibrate`` finds 1.04 ms a module, 0.5 ms without gloo's collectives, where an operator takes 8 us. It only
shows where the GPU would wait: small models. Not fitted to a GPU."""
WEIGHT_PASSES_BYTES = 12.0
"""Per parameter and micro batch: products read the weight twice and write and add up its gradient."""
SHARDED_PASSES_BYTES = 24.0
"""Likewise with weights that are gathered: copies into and out of the flat buffers of gather and reduction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step on one GPU."""

    matrix_s: float
    """Products with weights, forward and backward."""
    attention_s: float
    memory_bound_s: float
    """Elementwise kernels, loss, passes over weights and gradients."""
    recompute_s: float
    """What activation checkpointing computes again."""
    communication_s: float
    """Collectives and transfers of offloaded parameters, as far as computation does not hide them."""
    optimizer_s: float
    launch_s: float
    """While the GPU waits for kernels to be launched."""
    tokens_per_gpu: int
    model_flops_per_token: float
    """By `strategies.time.flops.MfuDefinition.PALM`: 6 N + 12 L H Q T."""
    hardware_flops_per_token: float
    """With what is computed twice."""
    peak_flops_per_s: float
    correction: StepCorrection | None = None
    """What the seconds have been multiplied by, so that they are those of the user's own runs; None: nothing."""

    @property
    def total_s(self) -> float:
        return (
            self.matrix_s
            + self.attention_s
            + self.memory_bound_s
            + self.recompute_s
            + self.communication_s
            + self.optimizer_s
            + self.launch_s
        )

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_gpu / self.total_s

    @property
    def mfu(self) -> float:
        """Model FLOPs over the data sheet's dense 16-bit peak."""
        return self.model_flops_per_token * self.tokens_per_s_per_gpu / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        return self.hardware_flops_per_token * self.tokens_per_s_per_gpu / self.peak_flops_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _MicroBatch:
    """Seconds of one micro batch on the GPU, without communication."""

    matrix_s: float
    attention_s: float
    memory_bound_s: float
    recompute_s: float
    forward_s: float
    backward_s: float
    forward_launch_s: float
    backward_launch_s: float


def step_time(
    spec: ModelSpec, *, cluster: Cluster, job: Job, plan: Plan, compiled: bool = False, rates: Rates | None = None
) -> StepTime:
    """Return the seconds of one optimizer step in the steady state.

    ``compiled``: blocks run under torch.compile, which our trainer does not do. ``rates``: instead of what ``scaling
    calibrate`` measured here, or else of ``configs/gpu_rates.csv``. Data loading, evaluation and checkpoints are not
    counted. On CPU ranks without a calibration it is a guess: ask `times_known` before you show it.

    Raises:
        ClusterError: the rates of the GPU, or of the strategy's engine on CPU ranks, are not known.
    """
    job = as_run(job, plan.strategy)
    spec = as_trained(spec, job)
    calibration = calibration_for(cluster) if rates is None else None
    if calibration and cluster.gpu.is_cpu:
        return _on_cpu(spec, calibration, cluster=cluster, job=job, plan=plan)
    rates = rates or rates_for(cluster, calibration)
    work = token_work(spec, job, compiled=compiled)
    micro = _micro_batch(spec, work, job=job, plan=plan, compiled=compiled, rates=rates)
    steps = plan.gradient_accumulation_steps
    launch = max(0.0, micro.forward_launch_s - micro.forward_s) + max(0.0, micro.backward_launch_s - micro.backward_s)
    communication = _communication(spec, work, micro=micro, cluster=cluster, job=job, plan=plan, rates=rates)
    recomputed = _recomputed_flops(spec, work, plan)
    return StepTime(
        matrix_s=steps * micro.matrix_s,
        attention_s=steps * micro.attention_s,
        memory_bound_s=steps * micro.memory_bound_s,
        recompute_s=steps * micro.recompute_s,
        communication_s=communication,
        optimizer_s=optimizer_seconds(work.trained_params, cluster=cluster, job=job, plan=plan, rates=rates),
        launch_s=steps * launch,
        tokens_per_gpu=steps * plan.micro_batch_size * job.seq_len,
        model_flops_per_token=work.model_flops,
        hardware_flops_per_token=work.model_flops + recomputed,
        peak_flops_per_s=rates.peak_flops_per_s,
    )


def _on_cpu(spec: ModelSpec, calibration: Calibration, *, cluster: Cluster, job: Job, plan: Plan) -> StepTime:
    """Return the step time on CPU ranks; MFU is a share of the fastest product that was measured."""
    seconds = cpu_seconds(spec, calibration, cluster=cluster, job=job, plan=plan)
    work = token_work(spec, job, compiled=False)
    return StepTime(
        **asdict(seconds),
        tokens_per_gpu=plan.gradient_accumulation_steps * plan.micro_batch_size * job.seq_len,
        model_flops_per_token=work.model_flops,
        hardware_flops_per_token=work.model_flops + _recomputed_flops(spec, work, plan),
        peak_flops_per_s=max(largest_product_rate(calibration, each) for each in (Precision.FP32, Precision.BF16)),
    )


def _recomputed_share(spec: ModelSpec, plan: Plan) -> float:
    """Return the share of blocks whose forward runs twice in full."""
    return checkpointed_share(spec, plan) if plan.activation_checkpointing is ActivationCheckpointing.FULL else 0.0


def _recomputed_flops(spec: ModelSpec, work: TokenWork, plan: Plan) -> float:
    """Return the FLOPs of a token that run a second time."""
    if plan.activation_checkpointing is ActivationCheckpointing.SELECTIVE:
        return checkpointed_share(spec, plan) * work.second_products_flops
    return _recomputed_share(spec, plan) * work.recomputed_flops


def _micro_batch(
    spec: ModelSpec, work: TokenWork, *, job: Job, plan: Plan, compiled: bool, rates: Rates
) -> _MicroBatch:
    tokens = plan.micro_batch_size * job.seq_len
    matrix_rate = _matrix_rate(spec, job, rates)
    attention_rate = _attention_rate(job, matrix_rate=matrix_rate, rates=rates)
    blocks = tokens * work.block_flops / matrix_rate
    head = tokens * work.head_flops / matrix_rate
    attention = tokens * work.attention_flops / attention_rate
    elementwise = tokens * work.block_bytes / rates.memory_bytes_per_s
    loss = tokens * work.loss_bytes / rates.memory_bytes_per_s
    weights = _weight_bytes_touched(work, plan) / rates.memory_bytes_per_s
    second = tokens * work.second_products_flops / matrix_rate
    again = checkpointed_share(spec, plan) * _recompute_seconds(
        plan, products=blocks, second_products=second, attention=attention, elementwise=elementwise
    )
    forward = blocks + head + attention + elementwise + loss / 3
    kernels = COMPILED_KERNELS_PER_BLOCK if compiled else KERNELS_PER_BLOCK
    launch = (spec.num_layers * kernels + _hooks(spec, plan)) * rates.launch_s
    products = tokens * work.backward_flops / matrix_rate
    in_blocks = work.reached_share * (2 * elementwise + ATTENTION_BACKWARD * attention)
    backward = products + in_blocks + 2 * loss / 3 + weights + again
    return _MicroBatch(
        matrix_s=blocks + head + products,
        attention_s=(1 + ATTENTION_BACKWARD * work.reached_share) * attention,
        memory_bound_s=(1 + 2 * work.reached_share) * elementwise + loss + weights,
        recompute_s=again,
        forward_s=forward,
        backward_s=backward,
        forward_launch_s=launch,
        backward_launch_s=launch * (2 + _recomputed_share(spec, plan)),
    )


def _hooks(spec: ModelSpec, plan: Plan) -> float:
    """Return what DeepSpeed's stage 3 does at every module of a forward, in kernels' worth of the CPU's time."""
    return STAGE3_KERNELS_PER_MODULE * num_units(spec, plan.strategy) if plan.strategy is StrategyName.ZERO3 else 0.0


def _matrix_rate(spec: ModelSpec, job: Job, rates: Rates) -> float:
    """Return FLOP/s of products; narrow ones wait for memory, the more the faster the arithmetic is."""
    full = rates.fp32_matrix_flops_per_s if job.precision is Precision.FP32 else rates.matrix_flops_per_s
    width = rates.half_rate_width * full / rates.matrix_flops_per_s
    return full / (1 + width / spec.hidden_size)


def _attention_rate(job: Job, *, matrix_rate: float, rates: Rates) -> float:
    """Return FLOP/s of attention; there are no fused fp32 kernels on tensor cores, so fp32 runs at the eager share."""
    is_fused = job.attention is Attention.FLASH and job.precision is not Precision.FP32
    return rates.attention_flops_per_s if is_fused else EAGER_ATTENTION_SHARE * matrix_rate


def _weight_bytes_touched(work: TokenWork, plan: Plan) -> float:
    is_gathered = plan.strategy in (StrategyName.ZERO3, StrategyName.FSDP2)
    touched = (1 + 2 * work.trained_share) / 3  # a third is what products read
    return work.num_params * touched * (SHARDED_PASSES_BYTES if is_gathered else WEIGHT_PASSES_BYTES)


def _recompute_seconds(
    plan: Plan, *, products: float, second_products: float, attention: float, elementwise: float
) -> float:
    """Return the seconds of what is computed again; selective keeps attention and every second product."""
    match plan.activation_checkpointing:
        case ActivationCheckpointing.NONE:
            return 0.0
        case ActivationCheckpointing.SELECTIVE:
            return second_products + elementwise
        case ActivationCheckpointing.FULL:
            return products + attention + elementwise


def _communication(
    spec: ModelSpec, work: TokenWork, *, micro: _MicroBatch, cluster: Cluster, job: Job, plan: Plan, rates: Rates
) -> float:
    """Return what collectives, and fetching offloaded parameters, add to the step."""
    moved = traffic(plan)
    links = fabric(cluster, rates)
    gathered_bytes = work.num_params * job.precision.compute_bytes
    messages = _messages(spec, work, plan)
    gather = links.seconds(gathered_bytes, messages=messages) + _fetch_seconds(work, cluster, job, plan, rates)
    reduction = links.seconds(work.trained_params * job.precision.weight_bytes, messages=messages)
    forward = moved.forward_gathers * links.exposed(gather, beside_s=micro.forward_s)
    gathers = gather if moved.backward_gathers else 0.0
    reduced = reduction * (2 if moved.gradient_gathers else 1)
    rounds = moved.gradient_reductions
    if _reduces_beside_backward(plan):
        backward = rounds * links.exposed(gathers + reduced, beside_s=micro.backward_s)
    else:
        backward = rounds * (reduced + links.exposed(gathers, beside_s=micro.backward_s))
    # Micro batches that gather weights in backward and reduce nothing.
    backward += (moved.backward_gathers - rounds if gathers else 0) * links.exposed(gathers, beside_s=micro.backward_s)
    return (
        forward + backward + moved.step_gathers * links.seconds(work.trained_share * gathered_bytes, messages=messages)
    )


def _reduces_beside_backward(plan: Plan) -> bool:
    """DDP and FSDP2 always do, DeepSpeed with ``overlap_comm``; TensorFlow packs all gradients first."""
    if plan.strategy is StrategyName.MIRRORED:
        return False
    return plan.strategy in (StrategyName.DDP, StrategyName.FSDP2) or plan.buckets.overlap_comm


def _messages(spec: ModelSpec, work: TokenWork, plan: Plan) -> int:
    """Return messages of one pass over all parameters: one a block, or as many buckets as they fill."""
    if plan.strategy in (StrategyName.ZERO3, StrategyName.FSDP2):
        return spec.num_layers + 1
    return math.ceil(work.num_params / plan.buckets.reduce_bucket_size)


def _fetch_seconds(work: TokenWork, cluster: Cluster, job: Job, plan: Plan, rates: Rates) -> float:
    """Return the seconds in which a rank's own part of the parameters comes from host memory or NVMe."""
    if plan.offload_param is OffloadDevice.NONE:
        return 0.0
    num_bytes = work.num_params / cluster.gpus * job.precision.weight_bytes
    disk = cluster.ranks_per_node * num_bytes / rates.nvme_bytes_per_s
    return num_bytes / rates.pcie_bytes_per_s + (disk if plan.offload_param is OffloadDevice.NVME else 0.0)
