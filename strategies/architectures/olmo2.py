"""OLMo 2 (OLMo team 2024, arXiv:2501.00656): norms after attention and MLP, and over all queries and keys."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, attention, blocks, decoder_spec, gated_mlp, read_dims
from strategies.architectures.tensors import norm
from strategies.model_spec import ModelSpec


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/olmo2/modeling_olmo2.py."""
    dims = read_dims(config)
    has_bias = config.flags["attention_bias"]
    block = (
        *attention(dims, input_bias=has_bias, output_bias=has_bias),
        *norm("self_attn.q_norm", dims.query_size),
        *norm("self_attn.k_norm", dims.key_value_size),
        *gated_mlp(dims.hidden_size, dims.intermediate_size),
        *norm("post_attention_layernorm", dims.hidden_size),
        *norm("post_feedforward_layernorm", dims.hidden_size),
    )
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("norm", dims.hidden_size),
    )


OLMO2 = Architecture(
    model_type="olmo2",
    classes={"Olmo2ForCausalLM": CAUSAL_LM},
    build=build,
    sizes={
        "vocab_size": 50304,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    optional_sizes={"num_key_value_heads": None, "head_dim": None},
    flags={"attention_bias": False, "tie_word_embeddings": False},
)
