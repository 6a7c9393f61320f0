"""Mistral (Jiang et al. 2023, arXiv:2310.06825) and Mixtral (Jiang et al. 2024, arXiv:2401.04088)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import (
    CAUSAL_LM,
    DecoderDims,
    MixtureOfExperts,
    SlidingWindow,
    attention,
    blocks,
    decoder_spec,
    gated_mlp,
    read_dims,
)
from strategies.architectures.tensors import Tensors, linear, norm, tensor, under
from strategies.model_spec import ModelSpec


def fused_experts(hidden_size: int, experts: MixtureOfExperts) -> Tensors:
    """Return the expert weights, which transformers 5 keeps as one tensor a matrix: (expert, outputs, inputs)."""
    fused = (
        *tensor("gate_up_proj", experts.num_experts, 2 * experts.expert_size, hidden_size),
        *tensor("down_proj", experts.num_experts, hidden_size, experts.expert_size),
    )
    return under("mlp.experts.", fused)


def router(hidden_size: int, experts: MixtureOfExperts) -> Tensors:
    """Return the matrix that scores the experts for a token."""
    return linear("mlp.gate", hidden_size, experts.num_experts)


def everywhere(size: int | None, *, num_layers: int) -> SlidingWindow:
    """Return a window that holds in all layers, or none."""
    return SlidingWindow(size=size, num_layers=num_layers) if size else SlidingWindow()


def _norms(dims: DecoderDims) -> Tensors:
    return norm("input_layernorm", dims.hidden_size) + norm("post_attention_layernorm", dims.hidden_size)


def build_mistral(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/mistral/modeling_mistral.py."""
    dims = read_dims(config)
    block = attention(dims) + gated_mlp(dims.hidden_size, dims.intermediate_size) + _norms(dims)
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("norm", dims.hidden_size),
        sliding=everywhere(config.optional_counts["sliding_window"], num_layers=dims.num_layers),
    )


def build_mixtral(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/mixtral/modeling_mixtral.py."""
    dims = read_dims(config)
    experts = MixtureOfExperts(
        num_experts=config.sizes["num_local_experts"],
        num_experts_per_token=config.sizes["num_experts_per_tok"],
        expert_size=dims.intermediate_size,
        num_layers=dims.num_layers,
    )
    block = (
        *attention(dims),
        *router(dims.hidden_size, experts),
        *fused_experts(dims.hidden_size, experts),
        *_norms(dims),
    )
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers), name="expert_block")],
        final_norm=norm("norm", dims.hidden_size),
        sliding=everywhere(config.optional_counts["sliding_window"], num_layers=dims.num_layers),
        experts=experts,
    )


_SIZES = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
MISTRAL = Architecture(
    model_type="mistral",
    classes={"MistralForCausalLM": CAUSAL_LM},
    build=build_mistral,
    sizes=_SIZES,
    optional_sizes={"head_dim": None},
    optional_counts={"sliding_window": 4096},
    flags={"tie_word_embeddings": False},
)
MIXTRAL = Architecture(
    model_type="mixtral",
    classes={"MixtralForCausalLM": CAUSAL_LM},
    build=build_mixtral,
    sizes={**_SIZES, "num_local_experts": 8, "num_experts_per_tok": 2},
    optional_sizes={"head_dim": None},
    optional_counts={"sliding_window": None},
    flags={"tie_word_embeddings": False},
    renamed={"num_experts": "num_local_experts"},
)
