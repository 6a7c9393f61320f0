"""Phi-3 (Abdin et al. 2024, arXiv:2404.14219) and Phi-1 to Phi-2 (Li et al. 2023, arXiv:2309.05463)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, attention, blocks, decoder_spec, read_dims
from strategies.architectures.mistral import everywhere
from strategies.architectures.tensors import Tensors, linear, norm
from strategies.model_spec import ModelSpec


def build_phi3(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/phi3/modeling_phi3.py. Projections are fused."""
    dims = read_dims(config)
    block = (
        *linear("self_attn.o_proj", dims.query_size, dims.hidden_size),
        *linear("self_attn.qkv_proj", dims.hidden_size, dims.query_size + 2 * dims.key_value_size),
        *linear("mlp.gate_up_proj", dims.hidden_size, 2 * dims.intermediate_size),
        *linear("mlp.down_proj", dims.intermediate_size, dims.hidden_size),
        *norm("input_layernorm", dims.hidden_size),
        *norm("post_attention_layernorm", dims.hidden_size),
    )
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("norm", dims.hidden_size),
        sliding=everywhere(config.optional_counts["sliding_window"], num_layers=dims.num_layers),
    )


def build_phi(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/phi/modeling_phi.py. One norm feeds attention and MLP."""
    dims = read_dims(config)
    head_norms: Tensors = ()
    if config.flags["qk_layernorm"]:
        head_size = dims.hidden_size // dims.num_attention_heads
        head_norms = norm("self_attn.q_layernorm", head_size, bias=True) + norm(
            "self_attn.k_layernorm", head_size, bias=True
        )
    block = (
        *attention(dims, input_bias=True, output_bias=True, output_name="dense"),
        *head_norms,
        *linear("mlp.fc1", dims.hidden_size, dims.intermediate_size, bias=True),
        *linear("mlp.fc2", dims.intermediate_size, dims.hidden_size, bias=True),
        *norm("input_layernorm", dims.hidden_size, bias=True),
    )
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("final_layernorm", dims.hidden_size, bias=True),
        head_bias=True,
        has_gated_mlp=False,
    )


PHI3 = Architecture(
    model_type="phi3",
    classes={"Phi3ForCausalLM": CAUSAL_LM},
    build=build_phi3,
    sizes={
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
    },
    optional_sizes={"num_key_value_heads": None, "head_dim": None},
    optional_counts={"sliding_window": None},
    flags={"tie_word_embeddings": False},
)
PHI = Architecture(
    model_type="phi",
    classes={"PhiForCausalLM": CAUSAL_LM},
    build=build_phi,
    sizes={
        "vocab_size": 51200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    optional_sizes={"num_key_value_heads": None, "head_dim": None},
    flags={"tie_word_embeddings": False, "qk_layernorm": False},
)
