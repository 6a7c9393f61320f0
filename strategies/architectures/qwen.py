"""Qwen2 (Yang et al. 2024, arXiv:2407.10671) and Qwen3 (Yang et al. 2025, arXiv:2505.09388), without experts."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import (
    CAUSAL_LM,
    DecoderDims,
    SlidingWindow,
    attention,
    blocks,
    decoder_spec,
    gated_mlp,
    read_dims,
    sliding_layers,
)
from strategies.architectures.tensors import Tensors, norm
from strategies.model_spec import ModelSpec


def query_key_norms(dims: DecoderDims) -> Tensors:
    """Return the RMS norms over the head dimension of queries and keys."""
    return norm("self_attn.q_norm", dims.head_dim) + norm("self_attn.k_norm", dims.head_dim)


def block_norms(dims: DecoderDims) -> Tensors:
    """Return the two norms of a block."""
    return norm("input_layernorm", dims.hidden_size) + norm("post_attention_layernorm", dims.hidden_size)


def build_qwen2(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/qwen2/modeling_qwen2.py."""
    dims = read_dims(config)
    return _spec(config, dims, attention_tensors=attention(dims, input_bias=True))


def build_qwen3(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/qwen3/modeling_qwen3.py."""
    dims = read_dims(config)
    has_bias = config.flags["attention_bias"]
    projections = attention(dims, input_bias=has_bias, output_bias=has_bias)
    return _spec(config, dims, attention_tensors=projections + query_key_norms(dims))


def _spec(config: CheckedConfig, dims: DecoderDims, *, attention_tensors: Tensors) -> ModelSpec:
    block = attention_tensors + gated_mlp(dims.hidden_size, dims.intermediate_size) + block_norms(dims)
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("norm", dims.hidden_size),
        sliding=_sliding(config, dims),
    )


def _sliding(config: CheckedConfig, dims: DecoderDims) -> SlidingWindow:
    size = config.optional_counts["sliding_window"] if config.flags["use_sliding_window"] else None
    first = config.counts["max_window_layers"]
    return sliding_layers(config, size=size, default=[layer >= first for layer in range(dims.num_layers)])


_SIZES = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 32768,
}
_COUNTS = {"max_window_layers": 28}
_WINDOW = {"sliding_window": 4096}
QWEN2 = Architecture(
    model_type="qwen2",
    classes={"Qwen2ForCausalLM": CAUSAL_LM},
    build=build_qwen2,
    sizes=_SIZES,
    optional_sizes={"num_key_value_heads": 32, "head_dim": None},
    counts=_COUNTS,
    optional_counts=_WINDOW,
    flags={"tie_word_embeddings": False, "use_sliding_window": False},
    other={"layer_types": None},
)
QWEN3 = Architecture(
    model_type="qwen3",
    classes={"Qwen3ForCausalLM": CAUSAL_LM},
    build=build_qwen3,
    sizes={**_SIZES, "head_dim": 128},
    optional_sizes={"num_key_value_heads": 32},
    counts=_COUNTS,
    optional_counts=_WINDOW,
    flags={"tie_word_embeddings": False, "use_sliding_window": False, "attention_bias": False},
    other={"layer_types": None},
)
