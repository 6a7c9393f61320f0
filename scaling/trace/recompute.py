"""Activation checkpointing of any module: Hugging Face models by their own switch, others block by block."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from scaling.recompute import checkpoint_library_blocks, checkpoint_settings, repeated_blocks
from scaling.trace.errors import TraceError
from scaling.trace.options import Recompute


def checkpoint_blocks(module: torch.nn.Module, *, recompute: Recompute, every: int = 1) -> None:
    """Make blocks 0, ``every``, 2 * ``every``, ... of ``module`` drop their activations.

    Raises:
        TraceError: the module has no repeated blocks.
    """
    if recompute is Recompute.NONE:
        return
    selective = recompute is Recompute.SELECTIVE
    if getattr(module, "supports_gradient_checkpointing", False):
        checkpoint_library_blocks(module, selective=selective, every=every)
    else:
        _checkpoint_plain(module, checkpoint_settings(selective=selective), every)


def _checkpoint_plain(module: torch.nn.Module, settings: dict[str, Any], every: int) -> None:
    blocks = list(repeated_blocks(module))
    if not blocks:
        raise TraceError(
            f"{type(module).__name__} has no repeated blocks (an nn.ModuleList or nn.Sequential of one class) to "
            f"checkpoint; put its layers in an nn.ModuleList, or trace with activation_checkpointing=none"
        )
    for block in blocks[::every]:
        block.forward = partial(checkpoint, block.forward, **settings)
