"""StableLM 2 (Bellagente et al. 2024, arXiv:2402.17834)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import (
    CAUSAL_LM,
    DecoderDims,
    attention,
    blocks,
    decoder_spec,
    gated_mlp,
    read_dims,
)
from strategies.architectures.tensors import Tensors, norm
from strategies.model_spec import ModelSpec


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/stablelm/modeling_stablelm.py."""
    dims = read_dims(config)
    width = dims.hidden_size
    second_norm = () if config.flags["use_parallel_residual"] else norm("post_attention_layernorm", width, bias=True)
    block = (
        *attention(dims, input_bias=config.flags["use_qkv_bias"]),
        *(_head_norms(dims) if config.flags["qk_layernorm"] else ()),
        *gated_mlp(width, dims.intermediate_size),
        *norm("input_layernorm", width, bias=True),
        *second_norm,
    )
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("norm", width, bias=True),
    )


def _head_norms(dims: DecoderDims) -> Tensors:
    """Return the norms of queries and keys: one layer norm without bias for every head."""
    counts = {"q_layernorm": dims.num_attention_heads, "k_layernorm": dims.num_key_value_heads}
    return tuple(
        tensor
        for name, num_heads in counts.items()
        for head in range(num_heads)
        for tensor in norm(f"self_attn.{name}.norms.{head}", dims.head_dim)
    )


STABLELM = Architecture(
    model_type="stablelm",
    classes={"StableLmForCausalLM": CAUSAL_LM},
    build=build,
    sizes={
        "vocab_size": 50304,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
    },
    flags={
        "use_qkv_bias": False,
        "qk_layernorm": False,
        "use_parallel_residual": False,
        "tie_word_embeddings": False,
    },
)
