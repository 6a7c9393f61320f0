"""OPT (Zhang et al. 2022, arXiv:2205.01068)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, DecoderDims, lm_head, spec_from_groups
from strategies.architectures.tensors import (
    Tensors,
    block_group,
    embedding,
    embedding_group,
    linear,
    norm,
    other_group,
    under,
)
from strategies.model_spec import ModelSpec

POSITION_OFFSET = 2
"""Positions start at 2: OPTLearnedPositionalEmbedding adds two rows that only padding could use."""


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/opt/modeling_opt.py. The final norm precedes the blocks."""
    dims = _read_dims(config)
    width = dims.hidden_size
    embedding_width = config.optional_sizes["word_embed_proj_dim"] or width
    embeddings = (
        *embedding("embed_tokens", dims.vocab_size, embedding_width),
        *embedding("embed_positions", config.sizes["max_position_embeddings"] + POSITION_OFFSET, width),
    )
    between: Tensors = ()
    if embedding_width != width:
        between = linear("project_out", width, embedding_width) + linear("project_in", embedding_width, width)
    if config.flags["do_layer_norm_before"] and not config.flags["_remove_final_layer_norm"]:
        between += _layer_norm(config, "final_layer_norm", width)
    groups = [
        embedding_group(under("model.decoder.", embeddings)),
        other_group(under("model.decoder.", between), name="final_norm"),
        block_group(under("model.decoder.layers.{layer}.", _block(config, dims)), layers=range(dims.num_layers)),
        lm_head(dims, inputs=embedding_width),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=False)


def _block(config: CheckedConfig, dims: DecoderDims) -> Tensors:
    width, has_bias = dims.hidden_size, config.flags["enable_bias"]
    projections = tuple(
        tensor
        for name in ("k_proj", "v_proj", "q_proj", "out_proj")
        for tensor in linear(name, width, width, bias=has_bias)
    )
    return (
        *under("self_attn.", projections),
        *_layer_norm(config, "self_attn_layer_norm", width),
        *linear("fc1", width, dims.intermediate_size, bias=has_bias),
        *linear("fc2", dims.intermediate_size, width, bias=has_bias),
        *_layer_norm(config, "final_layer_norm", width),
    )


def _layer_norm(config: CheckedConfig, name: str, width: int) -> Tensors:
    return norm(name, width, bias=True) if config.flags["layer_norm_elementwise_affine"] else ()


def _read_dims(config: CheckedConfig) -> DecoderDims:
    hidden_size, num_heads = config.sizes["hidden_size"], config.sizes["num_attention_heads"]
    return DecoderDims(
        hidden_size=hidden_size,
        num_layers=config.sizes["num_hidden_layers"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=config.head_dim(hidden_size, num_heads),
        intermediate_size=config.sizes["ffn_dim"],
        vocab_size=config.sizes["vocab_size"],
        max_seq_len=config.sizes["max_position_embeddings"],
        tied=config.flags["tie_word_embeddings"],
    )


OPT = Architecture(
    model_type="opt",
    classes={"OPTForCausalLM": CAUSAL_LM},
    build=build,
    sizes={
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
    },
    optional_sizes={"word_embed_proj_dim": None},
    flags={
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
    },
)
