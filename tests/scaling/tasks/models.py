"""A tiny model for each task, as config.json files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from strategies.decision import Decision
from strategies.job import OptimizerName
from strategies.load_model import load_model_spec
from strategies.plan import Buckets
from tests.scaling.decisions import TINY_LLAMA, toy_decision

_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BERT = {"model_type": "bert", **_SIZES, "vocab_size": 260, "max_position_embeddings": 64, **_WITHOUT_DROPOUT}
_IMAGE = {**_SIZES, "image_size": 16, "patch_size": 4}
TINY: dict[str, dict[str, Any]] = {
    "causal-lm": TINY_LLAMA,
    "masked-lm": {**_BERT, "architectures": ["BertForMaskedLM"]},
    "sequence-classification": {**_BERT, "architectures": ["BertForSequenceClassification"], "num_labels": 4},
    "image-classification": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        **_IMAGE,
        "num_labels": 6,
        **_WITHOUT_DROPOUT,
    },
    "contrastive": {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": 16,
        "text_config": {
            **_SIZES,
            "vocab_size": 260,
            "max_position_embeddings": 32,
            "bos_token_id": 256,
            "eos_token_id": 257,
            "pad_token_id": 258,
        },
        "vision_config": _IMAGE,
    },
}
SEQ_LENS = {
    "causal-lm": 32,
    "masked-lm": 32,
    "sequence-classification": 48,
    "image-classification": 17,
    "contrastive": 32,
}
SMALL_BUCKETS = Buckets(
    reduce_bucket_size=2000,
    allgather_bucket_size=2000,
    stage3_prefetch_bucket_size=2000,
    stage3_param_persistence_threshold=0,
    stage3_max_live_parameters=2000,
    overlap_comm=False,
)


def write_model(folder: Path, task: str) -> Path:
    """Write the task's config.json into a folder of its own and return that."""
    model = folder / task
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(TINY[task]))
    return model


def decision_for(
    model: Path,
    task: str,
    strategy: str,
    *,
    world_size: int,
    micro_batch_size: int,
    accumulation: int,
    optimizer: OptimizerName = OptimizerName.ADAMW,
) -> Decision:
    """Return a plan for the task's model, made by hand."""
    toy = toy_decision(strategy, world_size=world_size, accumulation=accumulation)
    job = replace(
        toy.job,
        seq_len=SEQ_LENS[task],
        global_batch_size=world_size * micro_batch_size * accumulation,
        optimizer=optimizer,
        fused_optimizer=optimizer is OptimizerName.ADAMW,
    )
    return replace(
        toy,
        model=str(model),
        num_params=load_model_spec(str(model)).num_params,
        job=job,
        plan=replace(toy.plan, micro_batch_size=micro_batch_size, buckets=SMALL_BUCKETS),
    )
