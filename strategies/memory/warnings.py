"""What the user should know before trusting an estimate or launching its plan."""

from __future__ import annotations

from collections.abc import Iterator

from strategies.cluster import Cluster
from strategies.job import Attention, Job
from strategies.memory.forms import has_fused_attention
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName

SIXTEEN_BITS = 2
"""Bytes of a 16-bit weight."""


def warnings_of(spec: ModelSpec, *, cluster: Cluster, job: Job, plan: Plan) -> Iterator[str]:
    """Yield one sentence for each thing that would surprise."""
    gpu = cluster.gpu
    if job.precision.is_bf16 and not gpu.supports_bf16:
        yield f"{gpu.name} has no bf16 arithmetic: training with precision={job.precision} is refused there"
    if job.attention is Attention.FLASH and not has_fused_attention(spec):
        yield (
            f"transformers has no fused attention for model_type={spec.family}: attention=flash is what a fused kernel "
            f"would keep; with the library's own code give attention=eager"
        )
    if job.lora and plan.strategy is StrategyName.DDP and job.precision.weight_bytes == SIXTEEN_BITS:
        yield (
            "adapters are counted in the format of the weights, as this trainer and DeepSpeed have them; PEFT under "
            "DDP makes them fp32 (autocast_adapter_dtype) and keeps the input of every adapted layer in fp32 too"
        )
    keeps_experts = plan.activation_checkpointing is ActivationCheckpointing.NONE and spec.num_experts > 0
    if plan.strategy is StrategyName.ZERO3 and keeps_experts:
        yield (
            "zero3 keeps all experts gathered from forward to backward without activation checkpointing; "
            "checkpoint, or use fsdp2"
        )
