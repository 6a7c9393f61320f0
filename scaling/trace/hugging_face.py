"""Hugging Face models from their configuration alone: how to make one, at another depth, and what it reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from scaling.auto_classes import AUTO_CLASSES
from scaling.trace.errors import TraceError
from strategies.model_spec import TaskKind

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_DEPTH_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "n_layers")


def model_factory(
    config: PretrainedConfig, *, task: TaskKind = TaskKind.CAUSAL_LM, attention: str = "sdpa"
) -> Callable[[], nn.Module]:
    """Return what makes the model that ``config`` describes, with random weights and without a key-value cache."""
    values = _raw(config)
    without_cache = type(config).from_dict({**values, "use_cache": False} if "use_cache" in values else values)

    def make() -> nn.Module:
        import transformers

        auto_class = getattr(transformers, AUTO_CLASSES[task])
        model: nn.Module = auto_class.from_config(without_cache, attn_implementation=attention)
        return model

    return make


def read_config(path: Path) -> PretrainedConfig:
    """Return the configuration in a ``config.json`` or in the folder that holds one.

    Raises:
        TraceError: it cannot be read, or this transformers does not know its ``model_type``.
    """
    from transformers import AutoConfig

    file = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(file.read_text())
        config: PretrainedConfig = AutoConfig.for_model(values.pop("model_type"), **values)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise TraceError(f"{file} is no configuration that can be traced ({error}); give a config.json") from error
    return config


def depth(config: PretrainedConfig) -> int:
    """Return the number of blocks (of the encoder, where there are two stacks)."""
    values = _raw(config)
    return next(int(values[key]) for key in _DEPTH_KEYS if values.get(key))


def at_depth(config: PretrainedConfig, num_layers: int) -> PretrainedConfig:
    """Return ``config`` with ``num_layers`` blocks in every stack; lists with one entry a block are cut to length."""
    full = depth(config)
    if not 0 < num_layers <= full:
        raise TraceError(f"num_layers={num_layers} must be between 1 and the model's own {full}")
    values = _raw(config)
    changed = {key: num_layers for key in _DEPTH_KEYS if isinstance(values.get(key), int)}
    changed |= {key: value[:num_layers] for key, value in values.items() if _is_per_layer(value, full)}
    return type(config).from_dict({**values, **changed})


def layer_period(config: PretrainedConfig) -> int:
    """Return after how many blocks the kinds of blocks repeat: 1 where all are alike, 6 for Gemma 3."""
    full = depth(config)
    lists = [value for value in _raw(config).values() if _is_per_layer(value, full)]
    for period in range(1, full):
        if all(value[period:] == value[:-period] for value in lists):
            return period
    return full


def token_batch(*, micro_batch_size: int, seq_len: int, task: TaskKind = TaskKind.CAUSAL_LM) -> dict[str, Tensor]:
    """Return token ids with labels of (batch, seq), full length, without padding."""
    if task is TaskKind.IMAGE_CLASSIFICATION:
        raise TraceError("an image model reads pixels, not tokens; use image_batch")
    shape = (micro_batch_size, seq_len)
    return {name: torch.zeros(shape, dtype=torch.long) for name in ("input_ids", "labels")}


def image_batch(config: PretrainedConfig, *, micro_batch_size: int) -> dict[str, Tensor]:
    """Return images with labels in the size that ``config`` names."""
    values: Mapping[str, Any] = _raw(config)
    shape = (micro_batch_size, values["num_channels"], values["image_size"], values["image_size"])
    return {"pixel_values": torch.zeros(shape), "labels": torch.zeros(micro_batch_size, dtype=torch.long)}


def _raw(config: PretrainedConfig) -> dict[str, Any]:
    return config.to_dict()


def _is_per_layer(value: Any, num_layers: int) -> bool:
    return isinstance(value, list) and len(value) == num_layers
