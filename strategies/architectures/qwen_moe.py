"""Qwen2-MoE (Yang et al. 2024, arXiv:2407.10671) and Qwen3-MoE (Yang et al. 2025, arXiv:2505.09388)."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.architectures.config import Architecture, CheckedConfig, shown
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
    sliding_layers,
)
from strategies.architectures.mistral import everywhere, fused_experts, router
from strategies.architectures.qwen import block_norms, query_key_norms
from strategies.architectures.tensors import Tensors, linear, norm
from strategies.model_spec import ModelSpec


def build_qwen2_moe(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/qwen2_moe/modeling_qwen2_moe.py."""
    dims = read_dims(config)
    shared_size = config.sizes["shared_expert_intermediate_size"]
    experts = _experts(config, dims, shared_expert_size=shared_size)
    expert_mlp = (
        *router(dims.hidden_size, experts),
        *fused_experts(dims.hidden_size, experts),
        *gated_mlp(dims.hidden_size, shared_size, name="mlp.shared_expert"),
        *linear("mlp.shared_expert_gate", dims.hidden_size, 1),
    )
    return _spec(
        config,
        dims,
        experts=experts,
        attention_tensors=attention(dims, input_bias=config.flags["qkv_bias"]),
        expert_mlp=expert_mlp,
        sliding=_alternating(config, dims),
    )


def build_qwen3_moe(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/qwen3_moe/modeling_qwen3_moe.py."""
    dims = read_dims(config)
    experts = _experts(config, dims)
    has_bias = config.flags["attention_bias"]
    window = config.optional_counts["sliding_window"] if config.flags["use_sliding_window"] else None
    return _spec(
        config,
        dims,
        experts=experts,
        attention_tensors=attention(dims, input_bias=has_bias, output_bias=has_bias) + query_key_norms(dims),
        expert_mlp=fused_experts(dims.hidden_size, experts) + router(dims.hidden_size, experts),
        sliding=everywhere(window, num_layers=dims.num_layers),
    )


def _spec(
    config: CheckedConfig,
    dims: DecoderDims,
    *,
    experts: MixtureOfExperts,
    attention_tensors: Tensors,
    expert_mlp: Tensors,
    sliding: SlidingWindow,
) -> ModelSpec:
    expert_layers = _expert_layers(config, dims)
    dense_layers = [layer for layer in range(dims.num_layers) if layer not in set(expert_layers)]
    dense_mlp = gated_mlp(dims.hidden_size, dims.intermediate_size)
    norms = block_norms(dims)
    return decoder_spec(
        config,
        dims,
        block_groups=[
            blocks(attention_tensors + dense_mlp + norms, layers=dense_layers, name="dense_block"),
            blocks(attention_tensors + expert_mlp + norms, layers=expert_layers, name="expert_block"),
        ],
        final_norm=norm("norm", dims.hidden_size),
        sliding=sliding,
        experts=experts if expert_layers else None,
    )


def _experts(config: CheckedConfig, dims: DecoderDims, *, shared_expert_size: int = 0) -> MixtureOfExperts:
    return MixtureOfExperts(
        num_experts=config.counts["num_experts"],
        num_experts_per_token=config.sizes["num_experts_per_tok"],
        expert_size=config.sizes["moe_intermediate_size"],
        shared_expert_size=shared_expert_size,
        num_layers=len(_expert_layers(config, dims)),
    )


def _expert_layers(config: CheckedConfig, dims: DecoderDims) -> Sequence[int]:
    """Return the layers with experts: every ``decoder_sparse_step``-th one that ``mlp_only_layers`` does not name."""
    dense = config.other["mlp_only_layers"] or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise config.problem(f"mlp_only_layers={shown(dense)} must be a list of layer numbers")
    if not config.counts["num_experts"]:
        return []
    step = config.sizes["decoder_sparse_step"]
    return [layer for layer in range(dims.num_layers) if (layer + 1) % step == 0 and layer not in dense]


def _alternating(config: CheckedConfig, dims: DecoderDims) -> SlidingWindow:
    size = config.optional_counts["sliding_window"] if config.flags["use_sliding_window"] else None
    end = config.counts["max_window_layers"]
    return sliding_layers(
        config, size=size, default=[layer % 2 == 0 and layer < end for layer in range(dims.num_layers)]
    )


QWEN2_MOE = Architecture(
    model_type="qwen2_moe",
    classes={"Qwen2MoeForCausalLM": CAUSAL_LM},
    build=build_qwen2_moe,
    sizes={
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 32768,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
    },
    optional_sizes={"head_dim": None},
    counts={"num_experts": 60, "max_window_layers": 28},
    optional_counts={"sliding_window": 4096},
    flags={"tie_word_embeddings": False, "use_sliding_window": False, "qkv_bias": True},
    other={"layer_types": None, "mlp_only_layers": None},
)
QWEN3_MOE = Architecture(
    model_type="qwen3_moe",
    classes={"Qwen3MoeForCausalLM": CAUSAL_LM},
    build=build_qwen3_moe,
    sizes={
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
    },
    optional_sizes={"head_dim": None},
    counts={"num_experts": 128},
    optional_counts={"sliding_window": 4096},
    flags={"tie_word_embeddings": False, "use_sliding_window": False, "attention_bias": False},
    other={"mlp_only_layers": None},
    renamed={"num_local_experts": "num_experts"},
)
