"""GPT-NeoX and Pythia (Black et al. 2022, arXiv:2204.06745; Biderman et al. 2023, arXiv:2304.01373)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, hidden_divided, lm_head, read_dims, spec_from_groups
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
    """Return the spec; source: transformers 5.24, models/gpt_neox/modeling_gpt_neox.py."""
    dims = hidden_divided(config, read_dims(config))
    width, has_bias = dims.hidden_size, config.flags["attention_bias"]
    block = (
        *norm("input_layernorm", width, bias=True),
        *norm("post_attention_layernorm", width, bias=True),
        *linear("attention.query_key_value", width, 3 * width, bias=has_bias),
        *linear("attention.dense", width, width, bias=has_bias),
        *linear("mlp.dense_h_to_4h", width, dims.intermediate_size, bias=True),
        *linear("mlp.dense_4h_to_h", dims.intermediate_size, width, bias=True),
    )
    groups = [
        embedding_group(embedding("gpt_neox.embed_in", dims.vocab_size, width)),
        block_group(under("gpt_neox.layers.{layer}.", block), layers=range(dims.num_layers)),
        other_group(norm("gpt_neox.final_layer_norm", width, bias=True), name="final_norm"),
        lm_head(dims),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=False)


GPT_NEOX = Architecture(
    model_type="gpt_neox",
    classes={"GPTNeoXForCausalLM": CAUSAL_LM},
    build=build,
    sizes={
        "vocab_size": 50432,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "max_position_embeddings": 2048,
    },
    flags={"attention_bias": True, "tie_word_embeddings": False},
    other={"use_parallel_residual": True},  # changes the order of the computation, not the parameters
)
