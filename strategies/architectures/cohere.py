"""Command R (Cohere 2024): one norm feeds attention and MLP."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, attention, blocks, decoder_spec, gated_mlp, read_dims
from strategies.architectures.tensors import Tensors, norm
from strategies.model_spec import ModelSpec


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/cohere/modeling_cohere.py."""
    dims = read_dims(config)
    has_bias = config.flags["attention_bias"]
    head_norms: Tensors = ()
    if config.flags["use_qk_norm"]:
        head_norms = (
            *norm("self_attn.q_norm", dims.num_attention_heads, dims.head_dim),
            *norm("self_attn.k_norm", dims.num_key_value_heads, dims.head_dim),
        )
    block = (
        *attention(dims, input_bias=has_bias, output_bias=has_bias),
        *head_norms,
        *gated_mlp(dims.hidden_size, dims.intermediate_size),
        *norm("input_layernorm", dims.hidden_size),
    )
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("norm", dims.hidden_size),
    )


COHERE = Architecture(
    model_type="cohere",
    classes={"CohereForCausalLM": CAUSAL_LM},
    build=build,
    sizes={
        "vocab_size": 256000,
        "hidden_size": 8192,
        "intermediate_size": 22528,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "max_position_embeddings": 8192,
    },
    optional_sizes={"num_key_value_heads": None, "head_dim": None},
    flags={"attention_bias": False, "use_qk_norm": False, "tie_word_embeddings": True},
)
