"""The weights in a folder of Hugging Face's ``Trainer`` or of accelerate's ``save_state`` and ``save_model``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from scaling.checkpoint.errors import CheckpointError
from scaling.errors import kind_and_line
from scaling.foreign.stored import StoredTensor, safe_load

INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model_fsdp.bin")
SHARDED = "pytorch_model_fsdp_0"
"""Folder of torch.distributed.checkpoint, as accelerate names it; its index is a pickle."""


def has_weights(folder: Path) -> bool:
    """Return whether there is a file of weights, or an index of several."""
    return any((folder / name).is_file() for name in (*INDEX_FILES, *WEIGHT_FILES))


def read_weights(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of all files, by name.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    for name in INDEX_FILES:
        if (folder / name).is_file():
            return _of_index(folder, folder / name)
    path = next(folder / name for name in WEIGHT_FILES if (folder / name).is_file())
    return _of_file(path)


def _of_index(folder: Path, index: Path) -> dict[str, StoredTensor]:
    try:
        files = sorted({str(file) for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"cannot read {index}: {kind_and_line(error)}; take another checkpoint") from error
    return {name: tensor for file in files for name, tensor in _of_file(folder / file).items()}


def _of_file(path: Path) -> dict[str, StoredTensor]:
    if path.suffix == ".safetensors":
        return _of_safetensors(path)
    content = safe_load(path)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds no tensors by name; take another checkpoint")
    return {
        name: StoredTensor(shape=tuple(tensor.shape), load=lambda tensor=tensor: tensor)  # type: ignore[misc]
        for name, tensor in content.items()
        if isinstance(tensor, torch.Tensor)
    }


def _of_safetensors(path: Path) -> dict[str, StoredTensor]:
    def load(name: str) -> torch.Tensor:
        with safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path}: {kind_and_line(error)}; take another checkpoint") from error
    return {
        name: StoredTensor(shape=shape, load=lambda name=name: load(name))  # type: ignore[misc]
        for name, shape in shapes.items()
    }
