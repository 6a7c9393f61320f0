"""Small llamas that calibration runs, one for each kind of cost."""

from __future__ import annotations

from typing import Any

from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.estimate import NO_ESTIMATE
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.units import GIB


def _llama(*, hidden: int, layers: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 8 * hidden // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 64,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
    }


THIN = _llama(hidden=96, layers=4, vocab=64)
"""So few numbers that only Python and the messages cost time."""
DEEP = _llama(hidden=96, layers=12, vocab=64)
"""The thin model three times as deep: what a step costs beside is the cost of no block."""
WIDE = _llama(hidden=320, layers=6, vocab=64)
"""7 million parameters, whose copies and messages cost as much as the products of a few tokens."""
MIDDLE = _llama(hidden=256, layers=2, vocab=512)
FEW_TOKENS = 16
WIDE_TOKENS = 64
"""Of the wide model: enough products for an engine to hide a part of its messages behind, as it does in training."""


def spec_of(config: dict[str, Any]) -> ModelSpec:
    """Return the facts of a reference model."""
    return load_model_spec(config)


def decision_for(
    config: dict[str, Any],
    *,
    num_ranks: int,
    strategy: StrategyName = StrategyName.DDP,
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE,
    reshards: bool = True,
    syncs_each_batch: bool = True,
    seq_len: int = FEW_TOKENS,
    micro_batch_size: int = 1,
    steps: int = 1,
    precision: Precision = Precision.FP32,
) -> Decision:
    """Return how a reference model is trained on CPU ranks; nothing is predicted."""
    spec = spec_of(config)
    job = Job(seq_len=seq_len, global_batch_size=micro_batch_size * steps * num_ranks, precision=precision)
    plan = Plan(
        strategy=strategy,
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=steps,
        activation_checkpointing=checkpointing,
        reshard_after_forward=reshards,
        sync_each_batch=syncs_each_batch,
        buckets=STRATEGIES[strategy].buckets(spec, job),
    )
    return Decision(
        model=spec.name,
        num_params=spec.num_params,
        cluster=Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=GIB), gpus=num_ranks, gpus_per_node=num_ranks),
        job=job,
        plan=plan,
        estimate=NO_ESTIMATE,
    )
