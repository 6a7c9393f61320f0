"""Weights out of a checkpoint folder that DeepSpeed has written, under any stage and number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from scaling.checkpoint.errors import CheckpointError
from scaling.engines.deepspeed import import_deepspeed
from scaling.export import export_model
from scaling.models import auto_class, build_config
from strategies.load_model import resolve_model

WRAPPER = "module."
"""Before every name where a program has wrapped its model once more."""


def import_deepspeed_checkpoint(folder: Path, *, model: str, out: Path) -> int:
    """Write the fp32 weights in ``folder`` as a model folder to ``out``; return how many parameters there are.

    Reads by DeepSpeed's own converter, which unpickles: give it folders only that come from a place you trust.
    ``model``: preset, folder or config.json of what was trained.

    Raises:
        ScalingError: the folder is no checkpoint of DeepSpeed's, or of another model, or ``out`` cannot be written.
    """
    config = build_config(resolve_model(model))
    state = _state_of(folder)
    built: Any = auto_class(config).from_config(config, dtype=torch.float32)
    found = {name.removeprefix(WRAPPER): tensor for name, tensor in state.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    if strange := [name for name, tensor in found.items() if shapes.get(name) != tuple(tensor.shape)]:
        raise CheckpointError(
            f"{folder} has {strange[0]} of shape {tuple(found[strange[0]].shape)}, and {model} has "
            f"{shapes.get(strange[0], 'no such tensor')}; give the model that was trained"
        )
    built.load_state_dict(found, strict=False)
    missing = {name for name, _ in built.named_parameters()} - found.keys()
    if missing:
        raise CheckpointError(
            f"{folder} has no {sorted(missing)[0]}, which {model} has; give the model it was trained as"
        )
    export_model(built, dict(built.state_dict()), None, folder=out)
    return sum(parameter.numel() for parameter in built.parameters())


def _state_of(folder: Path) -> dict[str, Any]:
    import_deepspeed(torch.device("cpu"))
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    try:
        state: dict[str, Any] = get_fp32_state_dict_from_zero_checkpoint(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{folder} is no checkpoint that DeepSpeed can read: {' '.join(str(error).split())[:200]}; give the folder "
            f"that its save_checkpoint() was given, with the file 'latest' in it"
        ) from error
    return state
