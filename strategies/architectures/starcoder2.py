"""StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, attention, blocks, decoder_spec, read_dims
from strategies.architectures.mistral import everywhere
from strategies.architectures.tensors import linear, norm
from strategies.model_spec import ModelSpec


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/starcoder2/modeling_starcoder2.py."""
    dims = read_dims(config)
    has_bias = config.flags["use_bias"]
    block = (
        *attention(dims, input_bias=has_bias, output_bias=has_bias),
        *linear("mlp.c_fc", dims.hidden_size, dims.intermediate_size, bias=has_bias),
        *linear("mlp.c_proj", dims.intermediate_size, dims.hidden_size, bias=has_bias),
        *norm("input_layernorm", dims.hidden_size, bias=True),
        *norm("post_attention_layernorm", dims.hidden_size, bias=True),
    )
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("norm", dims.hidden_size, bias=True),
        has_gated_mlp=False,
        sliding=everywhere(config.optional_counts["sliding_window"], num_layers=dims.num_layers),
    )


STARCODER2 = Architecture(
    model_type="starcoder2",
    classes={"Starcoder2ForCausalLM": CAUSAL_LM},
    build=build,
    sizes={
        "vocab_size": 49152,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
    optional_sizes={"head_dim": None},
    optional_counts={"sliding_window": None},
    flags={"use_bias": True, "tie_word_embeddings": True},
)
