"""BERT (Devlin et al. 2018, arXiv:1810.04805) and RoBERTa (Liu et al. 2019, arXiv:1907.11692), with one head each.

Heads: the language model's, or a classifier of whole texts, which in BERT stands on a pooler.
"""

from __future__ import annotations

from dataclasses import replace

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import DecoderDims, spec_from_groups
from strategies.architectures.labels import LABEL_KEYS, LABEL_SIZES, num_labels
from strategies.architectures.tensors import (
    Tensors,
    block_group,
    embedding,
    embedding_group,
    head_group,
    linear,
    norm,
    tensor,
    under,
)
from strategies.model_spec import ModelSpec, TaskKind


def build_bert(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/bert/modeling_bert.py."""
    dims = _read_dims(config, max_seq_len=config.sizes["max_position_embeddings"])
    width = dims.hidden_size
    embeddings = (
        *embedding("word_embeddings", dims.vocab_size, width),
        *embedding("position_embeddings", config.sizes["max_position_embeddings"], width),
        *embedding("token_type_embeddings", config.sizes["type_vocab_size"], width),
        *norm("LayerNorm", width, bias=True),
    )
    if config.task is TaskKind.SEQUENCE_CLASSIFICATION:
        classifier = (
            *linear("bert.pooler.dense", width, width, bias=True),
            *linear("classifier", width, num_labels(config), bias=True),
        )
        return _spec(config, replace(dims, tied=False), prefix="bert", embeddings=embeddings, head=classifier)
    transform = linear("dense", width, width, bias=True) + norm("LayerNorm", width, bias=True)
    head = (
        *tensor("bias", dims.vocab_size),
        *under("transform.", transform),
        *_untied_decoder(dims),
    )
    return _spec(config, dims, prefix="bert", embeddings=embeddings, head=under("cls.predictions.", head))


def build_roberta(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/roberta/modeling_roberta.py.

    Positions are counted from ``pad_token_id + 1``, so that fewer tokens fit than there are position embeddings.
    """
    num_positions = config.sizes["max_position_embeddings"]
    max_seq_len = num_positions - (config.optional_counts["pad_token_id"] or 0) - 1
    if max_seq_len < 1:
        raise config.problem(
            f"max_position_embeddings={num_positions} leaves no position after pad_token_id="
            f"{config.optional_counts['pad_token_id']}; correct the config.json"
        )
    dims = _read_dims(config, max_seq_len=max_seq_len)
    width = dims.hidden_size
    embeddings = (
        *embedding("word_embeddings", dims.vocab_size, width),
        *embedding("token_type_embeddings", config.sizes["type_vocab_size"], width),
        *norm("LayerNorm", width, bias=True),
        *embedding("position_embeddings", num_positions, width),
    )
    if config.task is TaskKind.SEQUENCE_CLASSIFICATION:
        classifier = (
            *linear("classifier.dense", width, width, bias=True),
            *linear("classifier.out_proj", width, num_labels(config), bias=True),
        )
        return _spec(config, replace(dims, tied=False), prefix="roberta", embeddings=embeddings, head=classifier)
    head = (
        *tensor("bias", dims.vocab_size),
        *linear("dense", width, width, bias=True),
        *norm("layer_norm", width, bias=True),
        *_untied_decoder(dims),
    )
    return _spec(config, dims, prefix="roberta", embeddings=embeddings, head=under("lm_head.", head))


def _untied_decoder(dims: DecoderDims) -> Tensors:
    return () if dims.tied else linear("decoder", dims.hidden_size, dims.vocab_size, bias=True)


def _read_dims(config: CheckedConfig, *, max_seq_len: int) -> DecoderDims:
    hidden_size, num_heads = config.sizes["hidden_size"], config.sizes["num_attention_heads"]
    return DecoderDims(
        hidden_size=hidden_size,
        num_layers=config.sizes["num_hidden_layers"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=config.head_dim(hidden_size, num_heads),
        intermediate_size=config.sizes["intermediate_size"],
        vocab_size=config.sizes["vocab_size"],
        max_seq_len=max_seq_len,
        tied=config.flags["tie_word_embeddings"],
    )


def _spec(config: CheckedConfig, dims: DecoderDims, *, prefix: str, embeddings: Tensors, head: Tensors) -> ModelSpec:
    width = dims.hidden_size
    block = (
        *linear("attention.self.query", width, width, bias=True),
        *linear("attention.self.key", width, width, bias=True),
        *linear("attention.self.value", width, width, bias=True),
        *linear("attention.output.dense", width, width, bias=True),
        *norm("attention.output.LayerNorm", width, bias=True),
        *linear("intermediate.dense", width, dims.intermediate_size, bias=True),
        *linear("output.dense", dims.intermediate_size, width, bias=True),
        *norm("output.LayerNorm", width, bias=True),
    )
    groups = [
        embedding_group(under(f"{prefix}.embeddings.", embeddings)),
        block_group(under(f"{prefix}.encoder.layer.{{layer}}.", block), layers=range(dims.num_layers)),
        head_group(head),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=False)


_SIZES = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
_ABSOLUTE_POSITIONS = {"position_embedding_type": ("absolute",)}
BERT = Architecture(
    model_type="bert",
    classes={
        "BertForMaskedLM": TaskKind.MASKED_LM,
        "BertLMHeadModel": TaskKind.CAUSAL_LM,
        "BertForSequenceClassification": TaskKind.SEQUENCE_CLASSIFICATION,
    },
    build=build_bert,
    sizes=_SIZES,
    optional_sizes=LABEL_SIZES,
    other=LABEL_KEYS,
    flags={"tie_word_embeddings": True},
    only=_ABSOLUTE_POSITIONS,
)
ROBERTA = Architecture(
    model_type="roberta",
    classes={
        "RobertaForMaskedLM": TaskKind.MASKED_LM,
        "RobertaForCausalLM": TaskKind.CAUSAL_LM,
        "RobertaForSequenceClassification": TaskKind.SEQUENCE_CLASSIFICATION,
    },
    build=build_roberta,
    sizes={**_SIZES, "vocab_size": 50265},
    optional_sizes=LABEL_SIZES,
    other=LABEL_KEYS,
    optional_counts={"pad_token_id": 1},
    flags={"tie_word_embeddings": True},
    only=_ABSOLUTE_POSITIONS,
)
