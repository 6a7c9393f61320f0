"""BLOOM (BigScience 2022, arXiv:2211.05100)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, DecoderDims, lm_head, spec_from_groups
from strategies.architectures.tensors import (
    block_group,
    embedding,
    embedding_group,
    linear,
    norm,
    other_group,
    under,
)
from strategies.model_spec import ModelSpec


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/bloom/modeling_bloom.py."""
    width, num_heads = config.sizes["hidden_size"], config.sizes["n_head"]
    dims = DecoderDims(
        hidden_size=width,
        num_layers=config.sizes["n_layer"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=config.head_dim(width, num_heads),
        intermediate_size=4 * width,  # BloomMLP knows no other
        vocab_size=config.sizes["vocab_size"],
        max_seq_len=None,  # ALiBi: no limit
        tied=config.flags["tie_word_embeddings"],
    )
    embeddings = (
        *embedding("word_embeddings", dims.vocab_size, width),
        *norm("word_embeddings_layernorm", width, bias=True),
    )
    block = (
        *norm("input_layernorm", width, bias=True),
        *linear("self_attention.query_key_value", width, 3 * width, bias=True),
        *linear("self_attention.dense", width, width, bias=True),
        *norm("post_attention_layernorm", width, bias=True),
        *linear("mlp.dense_h_to_4h", width, dims.intermediate_size, bias=True),
        *linear("mlp.dense_4h_to_h", dims.intermediate_size, width, bias=True),
    )
    groups = [
        embedding_group(under("transformer.", embeddings)),
        block_group(under("transformer.h.{layer}.", block), layers=range(dims.num_layers)),
        other_group(norm("transformer.ln_f", width, bias=True), name="final_norm"),
        lm_head(dims),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=False)


BLOOM = Architecture(
    model_type="bloom",
    classes={"BloomForCausalLM": CAUSAL_LM},
    build=build,
    sizes={"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8},
    flags={"tie_word_embeddings": True},
    renamed={"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
)
