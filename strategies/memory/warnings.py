"""What the user should know before trusting an estimate or launching its plan."""

from __future__ import annotations

from collections.abc import Iterator

from strategies.cluster import Cluster
from strategies.job import Attention, Job
from strategies.memory.forms import has_fused_attention
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName


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
    keeps_experts = plan.activation_checkpointing is ActivationCheckpointing.NONE and spec.num_experts > 0
    if plan.strategy is StrategyName.ZERO3 and keeps_experts:
        yield (
            "zero3 keeps all experts gathered from forward to backward without activation checkpointing; "
            "checkpoint, or use fsdp2"
        )
