"""Llama (Touvron et al. 2023, arXiv:2302.13971) and Granite, which adds only scalar multipliers."""

from __future__ import annotations

from dataclasses import replace

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import (
    CAUSAL_LM,
    attention,
    blocks,
    decoder_spec,
    gated_mlp,
    hidden_divided,
    read_dims,
)
from strategies.architectures.tensors import norm
from strategies.model_spec import ModelSpec


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/llama/modeling_llama.py."""
    dims = hidden_divided(config, read_dims(config))
    has_bias = config.flags["attention_bias"]
    block = (
        *attention(dims, input_bias=has_bias, output_bias=has_bias),
        *gated_mlp(dims.hidden_size, dims.intermediate_size, bias=config.flags["mlp_bias"]),
        *norm("input_layernorm", dims.hidden_size),
        *norm("post_attention_layernorm", dims.hidden_size),
    )
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("norm", dims.hidden_size),
    )


LLAMA = Architecture(
    model_type="llama",
    classes={"LlamaForCausalLM": CAUSAL_LM},
    build=build,
    sizes={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    optional_sizes={"num_key_value_heads": None, "head_dim": None},
    flags={"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False},
)
GRANITE = replace(LLAMA, model_type="granite", classes={"GraniteForCausalLM": CAUSAL_LM})
