"""Decisions for tests: by the planner for real models, by hand for toys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.emit.files import PLAN_FILE, write_plan
from strategies.estimate import NO_ESTIMATE
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.plan import ActivationCheckpointing, Buckets, Plan, StrategyName
from strategies.search import FixedParts
from strategies.select import decide
from strategies.units import GIB

TINY_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def cpu_cluster(num_ranks: int) -> Cluster:
    return Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=GIB), gpus=num_ranks, gpus_per_node=num_ranks)


def toy_decision(
    strategy: str, *, world_size: int, accumulation: int, max_norm: float = 0.0, precision: Precision = Precision.FP32
) -> Decision:
    """A plan for a model of a few numbers; buckets hold fewer elements than some of its tensors."""
    plan = Plan(
        strategy=StrategyName(strategy),
        micro_batch_size=1,
        gradient_accumulation_steps=accumulation,
        buckets=Buckets(
            reduce_bucket_size=6,
            allgather_bucket_size=6,
            stage3_prefetch_bucket_size=6,
            stage3_param_persistence_threshold=0,
            stage3_max_live_parameters=6,
            overlap_comm=False,
        ),
    )
    job = Job(seq_len=8, global_batch_size=accumulation * world_size, precision=precision, gradient_clipping=max_norm)
    return Decision(
        model="toy", num_params=0, cluster=cpu_cluster(world_size), job=job, plan=plan, estimate=NO_ESTIMATE
    )


def demo_decision(
    strategy: StrategyName,
    *,
    checkpointing: ActivationCheckpointing,
    gpu: Gpu,
    gpus: int,
    seq_len: int,
) -> Decision:
    """The planner's decision for llama-demo in bf16, one sample a pass and two passes a step."""
    return decide(
        load_model_spec("llama-demo"),
        cluster=Cluster(gpu=gpu, gpus=gpus, gpus_per_node=gpus),
        job=Job(seq_len=seq_len, global_batch_size=2 * gpus, precision=Precision.BF16),
        fixed=FixedParts(strategy=strategy, activation_checkpointing=checkpointing, micro_batch_size=1),
        model="llama-demo",
    )


def plan_tiny(
    folder: Path,
    strategy: str,
    *,
    world_size: int,
    micro_batch_size: int = 2,
    global_batch_size: int = 8,
    precision: Precision = Precision.FP32,
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a config.json and the planner's files for it; return the path of plan.json."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "config.json"
    model.write_text(json.dumps(TINY_LLAMA if config is None else config))
    decision = decide(
        load_model_spec(str(model)),
        cluster=cpu_cluster(world_size),
        job=Job(seq_len=64, global_batch_size=global_batch_size, precision=precision),
        fixed=FixedParts(
            strategy=StrategyName(strategy),
            activation_checkpointing=checkpointing,
            micro_batch_size=micro_batch_size,
        ),
        model=str(model),
    )
    write_plan(decision, folder=folder)
    return folder / PLAN_FILE
