"""Checkpoints of other programs as model folders, from which a run can start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint_export import generation_of
from scaling.export import MAX_SHARD_BYTES, export_tensors, shell_of
from scaling.export_layout import aliases_of
from scaling.foreign.deepspeed_folder import is_universal, is_zero, read_universal, read_zero, tagged_folder
from scaling.foreign.stored import StoredTensor
from scaling.foreign.weight_folder import SHARDED, has_weights, read_weights
from scaling.models import build_config
from strategies.load_model import resolve_model

WRAPPER = "module."
"""Before every name where a program has wrapped its model once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What was found."""

    kind: str
    """Who has written it."""
    num_parameters: int


def import_checkpoint(
    folder: Path,
    *,
    model: str,
    out: Path,
    dtype: torch.dtype = torch.float32,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Imported:
    """Write the weights in ``folder`` as a model folder to ``out``; a tensor is in memory at a time.

    Nothing in the folder is run: files of torch.save are read as tensors and plain values only.
    ``model``: preset, folder or config.json of what was trained.

    Raises:
        ScalingError: the folder is of no known kind, damaged or of another model, or ``out`` cannot be written.
    """
    resolved = resolve_model(model)
    kind, stored = _read(folder)
    shell = shell_of(build_config(resolved), dtype=dtype, generation=generation_of(resolved))
    found = _by_live_name(shell, stored, folder=folder, model=model)
    export_tensors(_tensors(shell, found), shell, None, folder=out, max_shard_bytes=max_shard_bytes)
    return Imported(kind=kind, num_parameters=sum(parameter.numel() for parameter in shell.parameters()))


def _read(folder: Path) -> tuple[str, dict[str, StoredTensor]]:
    step = tagged_folder(folder)
    if is_universal(step):
        return "a universal DeepSpeed checkpoint", read_universal(step)
    if is_zero(step):
        return "a DeepSpeed checkpoint", read_zero(step)
    if has_weights(folder):
        return "a folder of weights", read_weights(folder)
    if (folder / SHARDED).is_dir():
        raise CheckpointError(
            f"{folder} holds shards of torch.distributed.checkpoint, whose index is a pickle; write them as one model "
            f"with `accelerate merge-weights {folder / SHARDED} FOLDER` and import that"
        )
    raise CheckpointError(
        f"{folder} is no checkpoint that is known here; give the folder of DeepSpeed's save_checkpoint() or "
        f"ds_to_universal, of accelerate's save_state() or save_model(), or a checkpoint of Hugging Face's Trainer"
    )


def _by_live_name(
    shell: Any, stored: Mapping[str, StoredTensor], *, folder: Path, model: str
) -> dict[str, StoredTensor]:
    """Return what is stored of every tensor of the model, whichever name of a tied one it was stored under."""
    given = {str(name).removeprefix(WRAPPER): tensor for name, tensor in stored.items()}
    aliases = aliases_of(shell)
    shapes = {alias: tensor.shape for tensor, names in aliases.values() for alias in names}
    for name, tensor in given.items():
        if name not in shapes or not _fits(tensor, shapes[name]):
            raise CheckpointError(
                f"{folder} has {name} of shape {tensor.shape}, and {model} has "
                f"{tuple(shapes[name]) if name in shapes else 'no such tensor'}; give the model that was trained, or, "
                f"where the folder has a config.json, the folder itself as the model"
            )
    found = {}
    for name, (_, names) in aliases.items():
        held = [given[alias] for alias in names if alias in given]
        if not held:
            raise CheckpointError(f"{folder} has no {name}, which {model} has; give the model it was trained as")
        found[name] = held[0]
    return found


def _fits(tensor: StoredTensor, shape: torch.Size) -> bool:
    if tensor.shape_is_known:
        return tensor.shape == tuple(shape)
    return torch.Size(tensor.shape).numel() == shape.numel()


def _tensors(shell: Any, found: Mapping[str, StoredTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, found[name].load().reshape(tensor.shape)) for name, (tensor, _) in aliases_of(shell).items())
