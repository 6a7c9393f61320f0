"""Step times on CPU ranks, from a `Calibration`.

Nothing runs beside anything else there: the processors that compute also move the messages, and Python runs between the
operators. A step is the sum of

- products, at the rate measured for products of their size,
- elementwise operators, at the rate that a decoder's blocks reached on tensors of that size,
- what a block, a hook and a parameter cost however few the tokens are: the bare model's share, and what the
  engine of the strategy adds in every micro batch and at the end of the step, some of it however small the model is.
  Each engine was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from strategies.cluster import Cluster
from strategies.errors import ClusterError
from strategies.job import Job, LossImplementation
from strategies.memory.logits import fused_chunk_tokens
from strategies.model_spec import GroupRole, ModelSpec
from strategies.plan import REPLICATED, ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.time.calibration import Calibration, EngineCost
from strategies.time.measured_rates import memory_rate, product_rate, ring_share
from strategies.time.work import TokenWork, checkpointed_share, token_work
from strategies.units import ceil_div

CHUNK_OPERATORS = 15
"""Of one chunk of the fused loss (scaling/fused_loss.py)."""
CHUNK_WEIGHT_PASSES = 4
"""Over the head's weight: read for the logits and for the gradient of its input; its own gradient read and written."""
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


def cpu_seconds(spec: ModelSpec, calibration: Calibration, *, cluster: Cluster, job: Job, plan: Plan) -> CpuSeconds:
    """Return the seconds of one optimizer step of ``plan`` on CPU ranks.

    With other ranks than the calibration's, collectives are scaled as a ring's are; that ranks then share other cores
    and caches is not in it.

    Raises:
        ClusterError: the strategy's engine was not measured, for instance because DeepSpeed was not installed.
    """
    engine = _engine(calibration, plan)
    micro = micro_batch(spec, calibration, job=job, plan=plan)
    steps, params = plan.gradient_accumulation_steps, spec.num_trained_params
    ring = ring_share(cluster.gpus) / (ring_share(calibration.ranks) or 1.0)
    share = params / (1 if plan.strategy in REPLICATED else cluster.gpus)
    update = _update_seconds(share, calibration, clips=bool(job.gradient_clipping))
    measured_share = params / (1 if plan.strategy in REPLICATED else calibration.ranks)
    measured_update = _update_seconds(measured_share, calibration, clips=True)
    at_step = max(0.0, engine.step_s_per_param * params - measured_update)
    return CpuSeconds(
        matrix_s=steps * micro.matrix_s,
        attention_s=steps * micro.attention_s,
        memory_bound_s=steps * micro.memory_bound_s,
        recompute_s=steps * micro.recompute_s,
        communication_s=ring * (steps * engine.micro_batch_s_per_param * _moved_params(spec, plan) + at_step),
        optimizer_s=update + _offload_seconds(share, calibration, plan) + engine.step_s_per_tensor * num_tensors(spec),
        launch_s=engine.step_s
        + steps
        * (micro.launch_s + engine.micro_batch_s + engine.micro_batch_s_per_unit * num_units(spec, plan.strategy)),
    )


def _moved_params(spec: ModelSpec, plan: Plan) -> float:
    """Return the parameters that a micro batch moves: gradients of trained ones, and two gathers of all of them."""
    is_gathered = plan.strategy in (StrategyName.ZERO3, StrategyName.FSDP2)
    return (2 * spec.num_params + spec.num_trained_params) / 3 if is_gathered else spec.num_trained_params


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
    # The trainer's fused loss is made of the same operators as the framework's own, on chunks.
    work = token_work(spec, replace(job, loss=LossImplementation.STANDARD), compiled=False)
    tokens = plan.micro_batch_size * job.seq_len
    blocks = tokens * work.block_flops / _block_rate(calibration, spec, work, job=job, tokens=tokens)
    chunks, chunk_tokens = _loss_chunks(spec, job, tokens)
    head = tokens * work.head_flops / product_rate(calibration, job.precision, chunk_tokens * work.head_flops)
    attention = tokens * work.attention_flops / _attention_rate(calibration, spec, work, job=job, tokens=tokens)
    width = job.precision.compute_bytes
    elementwise = tokens * work.block_bytes / memory_rate(calibration, job.precision, tokens * spec.hidden_size * width)
    logits = tokens * spec.vocab_size * width
    loss = tokens * work.loss_bytes / memory_rate(calibration, job.precision, logits)
    second = blocks * work.second_products_flops / max(work.block_flops, 1.0)
    share = checkpointed_share(spec, plan)
    again = {
        ActivationCheckpointing.NONE: 0.0,
        ActivationCheckpointing.SELECTIVE: second + elementwise,
        ActivationCheckpointing.FULL: blocks + attention + elementwise,
    }[plan.activation_checkpointing]
    return MicroBatch(
        matrix_s=(1 + work.backward_flops / max(work.block_flops + work.head_flops, 1.0)) * (blocks + head),
        attention_s=(1 + (TRAINING - 1) * work.reached_share) * attention,
        memory_bound_s=(1 + (TRAINING - 1) * work.reached_share) * elementwise
        + loss
        + calibration.weight_s_per_param * work.trained_params
        + (chunks - 1) * _chunk_seconds(calibration, work, job),
        recompute_s=share * again,
        launch_s=spec.num_layers * _launch_per_block(calibration, plan, share=share),
    )


def _loss_chunks(spec: ModelSpec, job: Job, tokens: int) -> tuple[int, int]:
    """Return into how many chunks the loss cuts the tokens of a micro batch, and the tokens of one."""
    if job.loss is not LossImplementation.FUSED:
        return 1, tokens
    size = fused_chunk_tokens(tokens, hidden_size=spec.hidden_size, vocab_size=spec.vocab_size)
    return ceil_div(tokens, size), size


def _chunk_seconds(calibration: Calibration, work: TokenWork, job: Job) -> float:
    """Return what one more chunk of the loss costs: its operators, and the head's weight and gradient once more."""
    passes = CHUNK_WEIGHT_PASSES * job.precision.compute_bytes * work.head_flops / 2
    return CHUNK_OPERATORS * calibration.operator_s + passes / calibration.copy_bytes_per_s


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
    """Return how many matrices a block multiplies with, without adapters, whose products are small."""
    blocks = [group for group in spec.groups if group.role is GroupRole.BLOCK]
    matrices = sum(
        group.num_copies * sum(len(tensor.shape) > 1 and "lora_" not in tensor.name for tensor in group.tensors)
        for group in blocks
    )
    return max(1.0, matrices / spec.num_layers)


@lru_cache(maxsize=256)
def num_tensors(spec: ModelSpec) -> int:
    """Return the parameter tensors that are trained."""
    return sum(group.num_copies * sum(tensor.is_trained for tensor in group.tensors) for group in spec.groups)


@lru_cache(maxsize=1024)
def num_units(spec: ModelSpec, strategy: StrategyName) -> int:
    """Return how many places of the model an engine hooks into in every micro batch.

    FSDP2: the blocks and the rest. Stage 3: every module that has parameters of its own. The others: every parameter
    that is trained.
    """
    if strategy is StrategyName.FSDP2:
        return spec.num_layers + 1
    if strategy is not StrategyName.ZERO3:
        return num_tensors(spec)
    modules = ({tensor.name.rpartition(".")[0] for tensor in group.tensors} for group in spec.groups)
    return sum(group.num_copies * len(names) for group, names in zip(spec.groups, modules, strict=True))


def _launch_per_block(calibration: Calibration, plan: Plan, *, share: float) -> float:
    costs = {each.activation_checkpointing: each.s_per_block for each in calibration.model}
    plain = costs.get(ActivationCheckpointing.NONE, 0.0)
    return plain + share * (costs.get(plan.activation_checkpointing, plain) - plain)


def _engine(calibration: Calibration, plan: Plan) -> EngineCost:
    is_fsdp2 = plan.strategy is StrategyName.FSDP2
    wanted = (
        plan.strategy,
        plan.activation_checkpointing,
        plan.reshard_after_forward or not is_fsdp2,
        plan.sync_each_batch or not is_fsdp2,
    )
    for each in calibration.engines:
        kind = (each.strategy, each.activation_checkpointing, each.reshard_after_forward, each.sync_each_batch)
        if kind == wanted:
            return each
    raise ClusterError(
        f"the calibration of {calibration.device} has no engine of strategy={plan.strategy} with "
        f"activation_checkpointing={plan.activation_checkpointing}; install what it needs and run `scaling calibrate`"
    )


def _update_seconds(num_params: float, calibration: Calibration, *, clips: bool) -> float:
    norm = num_params / calibration.norm_elements_per_s if clips and calibration.norm_elements_per_s else 0.0
    return num_params / calibration.adam_elements_per_s + norm


def _offload_seconds(share: float, calibration: Calibration, plan: Plan) -> float:
    """Return the seconds of states that rest elsewhere: host memory is the ranks' own, a disk is not."""
    if plan.offload_optimizer is not OffloadDevice.NVME or not calibration.disk_write_bytes_per_s:
        return 0.0
    read = calibration.disk_read_bytes_per_s or calibration.disk_write_bytes_per_s
    return calibration.ranks * share * 8 * (1 / calibration.disk_write_bytes_per_s + 1 / read)
