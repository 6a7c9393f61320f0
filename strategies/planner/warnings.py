"""What should be known about a chosen plan before it is launched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from strategies.errors import PlanError, SpecError
from strategies.fsdp2_groups import shard_elements
from strategies.job import LossImplementation, Precision
from strategies.memory.predict import predict
from strategies.mirrored_limits import told_differently
from strategies.model_spec import ParameterTensor
from strategies.plan import OffloadDevice, StrategyName
from strategies.planner.bound import lower_bound
from strategies.planner.sweep import Fit, Question
from strategies.registry import STRATEGIES
from strategies.units import format_bytes

LARGE_LOGITS = 0.25
"""Share of the peak beyond which the loss is worth changing."""
FULL_HOST = 0.9
"""Share of a node's memory beyond which the page cache and data loaders have no room."""
UNEVEN = 1.5
"""Times an even share, beyond which FSDP2's shards are the reason for what it needs."""
STAGES = (StrategyName.DDP, StrategyName.ZERO1, StrategyName.ZERO2, StrategyName.ZERO3)


def warnings_about(chosen: Fit, question: Question) -> Iterator[str]:
    """Yield one sentence for each thing that would surprise."""
    yield from told_differently(question.job, chosen.plan.strategy)
    yield from _higher_stages(chosen, question)
    yield from _logits(chosen)
    yield from _host(chosen, question)
    yield from _uneven_shards(question)
    if chosen.variant.job.precision is Precision.BF16_PURE:
        yield (
            "bf16-pure keeps weights and optimizer states in 16 bits: changes below 1/256 of a number are lost, and "
            "weights and second moments may stop moving; bf16 keeps fp32 copies"
        )


def _higher_stages(chosen: Fit, question: Question) -> Iterator[str]:
    """Yield that the plan's ZeRO stage needs more than the one below it would, all else equal."""
    plan = chosen.plan
    if plan.strategy not in STAGES[1:] or plan.offload_param is not OffloadDevice.NONE:
        return
    below = STAGES[STAGES.index(plan.strategy) - 1]
    if _floor(below, chosen, question) >= chosen.estimate.peak_allocated_bytes:
        return  # nothing has to be laid out to see that it does not
    more, less = chosen.estimate.device_bytes, _device_bytes(below, chosen, question)
    if less is not None and more > less:
        yield (
            f"{plan.strategy} needs more than {below} here, {format_bytes(more)} against {format_bytes(less)} with all "
            f"else equal: its buffers outweigh what it shares"
        )


def _floor(stage: StrategyName, chosen: Fit, question: Question) -> int:
    variant = replace(chosen.variant, strategy=stage)
    return lower_bound(question.spec, variant, cluster=question.cluster).num_bytes(chosen.plan.micro_batch_size)


def _device_bytes(stage: StrategyName, chosen: Fit, question: Question) -> int | None:
    buckets = STRATEGIES[stage].buckets(question.spec, chosen.variant.job)
    plan = replace(chosen.plan, strategy=stage, buckets=buckets, reshard_after_forward=True)
    try:
        return predict(question.spec, cluster=question.cluster, job=chosen.variant.job, plan=plan).device_bytes
    except (PlanError, SpecError):
        return None  # offload that only one of the two can have


def _logits(chosen: Fit) -> Iterator[str]:
    peak = chosen.estimate.memory.peak
    if chosen.variant.job.loss is LossImplementation.STANDARD and peak.causes.logits > LARGE_LOGITS * peak.total_bytes:
        share = peak.causes.logits / peak.total_bytes
        yield (
            f"logits hold {format_bytes(peak.causes.logits)} of the peak ({share:.0%}); "
            f"--loss fused never holds them all, --micro-batch-size or --seq-len make them fewer"
        )


def _host(chosen: Fit, question: Question) -> Iterator[str]:
    host, known = chosen.estimate.host, question.cluster.host_memory_bytes
    if host is None or question.cluster.gpu.is_cpu:
        return
    needed = host.peak.total_bytes
    offloads = {chosen.plan.offload_optimizer, chosen.plan.offload_param} != {OffloadDevice.NONE}
    if known is None and offloads:
        yield (
            f"the plan offloads and the nodes' memory is not known: it needs {format_bytes(needed)} a node; "
            f"give --host-memory-gib to have that checked"
        )
    elif known is not None and needed > FULL_HOST * known:
        yield f"host memory is almost full: {format_bytes(needed)} of {format_bytes(known)} a node"


def _uneven_shards(question: Question) -> Iterator[str]:
    """Yield that FSDP2, if it was looked at, leaves some ranks without rows of a tensor that has few."""
    spec, gpus = question.spec, question.cluster.gpus
    if question.fixed.strategy not in (None, StrategyName.FSDP2):
        return
    extra = Counter[ParameterTensor]()
    for group in spec.groups:
        for tensor in group.tensors:
            extra[tensor] += group.num_copies * (gpus * shard_elements(tensor, gpus) - tensor.num_params)
    ratio = 1 + extra.total() / spec.num_params
    if ratio > UNEVEN:
        ((worst, _),) = extra.most_common(1)
        yield (
            f"fsdp2 cuts every tensor along its first dimension: of {gpus} ranks the fullest keep {ratio:.2f} times an "
            f"even share of the states, mostly since {worst.name.format(layer='*')} has {worst.shape[0]} rows; "
            f"zero3 cuts evenly"
        )
