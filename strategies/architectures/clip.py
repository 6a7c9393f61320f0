"""CLIP (Radford et al. 2021, arXiv:2103.00020): a text and an image encoder whose outputs are compared.

The spec's sizes are the text encoder's, its number of blocks that of both; a step's activations have no closed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.architectures.config import Architecture, CheckedConfig, shown
from strategies.architectures.decoder import DecoderDims, spec_from_groups
from strategies.architectures.tensors import (
    Tensors,
    block_group,
    embedding,
    embedding_group,
    head_group,
    linear,
    norm,
    other_group,
    tensor,
    under,
)
from strategies.model_spec import ModelSpec, ParameterGroup, TaskKind


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/clip/modeling_clip.py."""
    text, vision = _part(config, "text_config", _TEXT), _part(config, "vision_config", _VISION)
    text_width, vision_width = text.sizes["hidden_size"], vision.sizes["hidden_size"]
    joint = config.sizes["projection_dim"]
    words = (
        *embedding("token_embedding", text.sizes["vocab_size"], text_width),
        *embedding("position_embedding", text.sizes["max_position_embeddings"], text_width),
    )
    groups = [
        other_group(tensor("logit_scale"), name="logit_scale"),
        embedding_group(under("text_model.embeddings.", words)),
        _blocks("text_model", text, name="text_block"),
        other_group(norm("text_model.final_layer_norm", text_width, bias=True), name="text_final_norm"),
        embedding_group(under("vision_model.", _patches(vision)), name="patches"),
        _blocks("vision_model", vision, name="vision_block"),
        other_group(norm("vision_model.post_layernorm", vision_width, bias=True), name="vision_final_norm"),
        head_group(linear("visual_projection", vision_width, joint) + linear("text_projection", text_width, joint)),
    ]
    num_layers = text.sizes["num_hidden_layers"] + vision.sizes["num_hidden_layers"]
    return spec_from_groups(config, _dims(text, num_layers=num_layers), groups=groups, has_gated_mlp=False)


def _part(config: CheckedConfig, key: str, architecture: Architecture) -> CheckedConfig:
    """Return the checked values of one encoder."""
    values = config.other[key]
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise config.problem(f"{key}={shown(values)} must be an object; correct the config.json")
    own: dict[str, Any] = {name: value for name, value in values.items() if name != "architectures"}
    return architecture.check(own, name=f"{config.name}, {key}")


def _dims(text: CheckedConfig, *, num_layers: int) -> DecoderDims:
    width, num_heads = text.sizes["hidden_size"], text.sizes["num_attention_heads"]
    return DecoderDims(
        hidden_size=width,
        num_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=text.head_dim(width, num_heads),
        intermediate_size=text.sizes["intermediate_size"],
        vocab_size=text.sizes["vocab_size"],
        max_seq_len=text.sizes["max_position_embeddings"],
        tied=False,
    )


def _patches(vision: CheckedConfig) -> Tensors:
    width, image, patch = (vision.sizes[name] for name in ("hidden_size", "image_size", "patch_size"))
    if patch > image:
        raise vision.problem(f"image_size={image} holds no patch of patch_size={patch}; use smaller patches")
    return (
        *tensor("embeddings.class_embedding", width),
        *tensor("embeddings.patch_embedding.weight", width, vision.sizes["num_channels"], patch, patch),
        *embedding("embeddings.position_embedding", (image // patch) ** 2 + 1, width),
        *norm("pre_layrnorm", width, bias=True),
    )


def _blocks(prefix: str, part: CheckedConfig, *, name: str) -> ParameterGroup:
    width, inner = part.sizes["hidden_size"], part.sizes["intermediate_size"]
    part.head_dim(width, part.sizes["num_attention_heads"])
    block = (
        *(each for kind in ("k", "v", "q") for each in linear(f"self_attn.{kind}_proj", width, width, bias=True)),
        *linear("self_attn.out_proj", width, width, bias=True),
        *norm("layer_norm1", width, bias=True),
        *linear("mlp.fc1", width, inner, bias=True),
        *linear("mlp.fc2", inner, width, bias=True),
        *norm("layer_norm2", width, bias=True),
    )
    layers = range(part.sizes["num_hidden_layers"])
    return block_group(under(f"{prefix}.encoder.layers.{{layer}}.", block), layers=layers, name=name)


_TEXT = Architecture(
    model_type="clip_text_model",
    classes={"CLIPTextModel": TaskKind.CONTRASTIVE},
    build=build,
    sizes={
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
    },
)
_VISION = Architecture(
    model_type="clip_vision_model",
    classes={"CLIPVisionModel": TaskKind.CONTRASTIVE},
    build=build,
    sizes={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
    },
)
CLIP = Architecture(
    model_type="clip",
    classes={"CLIPModel": TaskKind.CONTRASTIVE},
    build=build,
    sizes={"projection_dim": 512},
    other={"text_config": None, "vision_config": None},
)
