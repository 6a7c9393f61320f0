"""Vision Transformer (Dosovitskiy et al. 2020, arXiv:2010.11929) with a classification head."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig, shown
from strategies.architectures.decoder import DecoderDims, spec_from_groups
from strategies.architectures.labels import LABEL_KEYS, LABEL_SIZES, num_labels
from strategies.architectures.tensors import (
    block_group,
    embedding_group,
    head_group,
    linear,
    norm,
    other_group,
    tensor,
    under,
)
from strategies.model_spec import ModelSpec, TaskKind


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/vit/modeling_vit.py. One token a patch, and a class token."""
    dims = _read_dims(config)
    width, patch = dims.hidden_size, _pair(config, "patch_size")
    has_bias = config.flags["qkv_bias"]
    embeddings = (
        *tensor("cls_token", 1, 1, width),
        *tensor("position_embeddings", 1, _num_tokens(config), width),
        *tensor("patch_embeddings.projection.weight", width, config.sizes["num_channels"], *patch),
        *tensor("patch_embeddings.projection.bias", width),
    )
    block = (
        *linear("attention.q_proj", width, dims.query_size, bias=has_bias),
        *linear("attention.k_proj", width, dims.query_size, bias=has_bias),
        *linear("attention.v_proj", width, dims.query_size, bias=has_bias),
        *linear("attention.o_proj", dims.query_size, width, bias=True),
        *norm("layernorm_before", width, bias=True),
        *norm("layernorm_after", width, bias=True),
        *linear("mlp.fc1", width, dims.intermediate_size, bias=True),
        *linear("mlp.fc2", dims.intermediate_size, width, bias=True),
    )
    groups = [
        embedding_group(under("vit.embeddings.", embeddings)),
        block_group(under("vit.layers.{layer}.", block), layers=range(dims.num_layers)),
        other_group(norm("vit.layernorm", width, bias=True), name="final_norm"),
        head_group(linear("classifier", width, num_labels(config), bias=True)),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=False)


def _read_dims(config: CheckedConfig) -> DecoderDims:
    hidden_size, num_heads = config.sizes["hidden_size"], config.sizes["num_attention_heads"]
    return DecoderDims(
        hidden_size=hidden_size,
        num_layers=config.sizes["num_hidden_layers"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=config.head_dim(hidden_size, num_heads),
        intermediate_size=config.sizes["intermediate_size"],
        vocab_size=0,
        max_seq_len=_num_tokens(config),
        tied=False,
    )


def _num_tokens(config: CheckedConfig) -> int:
    image, patch = _pair(config, "image_size"), _pair(config, "patch_size")
    num_patches = (image[0] // patch[0]) * (image[1] // patch[1])
    if num_patches < 1:
        raise config.problem(f"image_size={image} holds no patch of patch_size={patch}; use smaller patches")
    return num_patches + 1


def _pair(config: CheckedConfig, key: str) -> tuple[int, int]:
    """Return height and width; config.json gives one number for a square, or both."""
    value = config.other[key]
    pair = value if isinstance(value, list | tuple) else [value, value]
    if len(pair) == 2 and all(type(each) is int and 0 < each < 2**20 for each in pair):
        return (pair[0], pair[1])
    raise config.problem(f"{key}={shown(value)} must be one or two whole numbers above zero; correct the config.json")


VIT = Architecture(
    model_type="vit",
    classes={"ViTForImageClassification": TaskKind.IMAGE_CLASSIFICATION},
    build=build,
    sizes={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
    },
    optional_sizes={"head_dim": None, **LABEL_SIZES},
    flags={"qkv_bias": True},
    other={"image_size": 224, "patch_size": 16, **LABEL_KEYS},
)
