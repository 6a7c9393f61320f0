"""Activation checkpointing of any module: Hugging Face models by their own switch, others block by block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from scaling.trace.errors import TraceError
from scaling.trace.options import Recompute

aten = torch.ops.aten

KEPT_OPS = frozenset(
    {
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten.baddbmm.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)
"""Whose outputs selective checkpointing keeps: what is expensive to compute again."""


def checkpoint_blocks(module: torch.nn.Module, *, recompute: Recompute, every: int = 1) -> None:
    """Make blocks 0, ``every``, 2 * ``every``, ... of ``module`` drop their activations.

    Raises:
        TraceError: the module has no repeated blocks.
    """
    if recompute is Recompute.NONE:
        return
    settings: dict[str, Any] = {"use_reentrant": False}
    if recompute is Recompute.SELECTIVE:
        settings["context_fn"] = selective_contexts
    if getattr(module, "supports_gradient_checkpointing", False):
        _checkpoint_hugging_face(module, settings, every)
    else:
        _checkpoint_plain(module, settings, every)


def selective_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of forward and of the recomputation that keep the outputs of `KEPT_OPS`."""
    contexts: Any = create_selective_checkpoint_contexts
    forward, recomputation = contexts(_keep_expensive)
    return forward, recomputation


def _keep_expensive(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in KEPT_OPS else CheckpointPolicy.PREFER_RECOMPUTE


def _checkpoint_hugging_face(module: Any, settings: dict[str, Any], every: int) -> None:
    from transformers.modeling_layers import GradientCheckpointingLayer

    # transformers 5.24 renamed the method; the old name works until version 6.
    enable = getattr(module, "activation_checkpointing_enable", module.gradient_checkpointing_enable)
    enable(settings)
    layers = [child for child in module.modules() if isinstance(child, GradientCheckpointingLayer)]
    for index, layer in enumerate(layers):
        if index % every:
            layer.gradient_checkpointing = False


def _checkpoint_plain(module: torch.nn.Module, settings: dict[str, Any], every: int) -> None:
    blocks = list(repeated_blocks(module))
    if not blocks:
        raise TraceError(
            f"{type(module).__name__} has no repeated blocks (an nn.ModuleList or nn.Sequential of one class) to "
            f"checkpoint; put its layers in an nn.ModuleList, or trace with activation_checkpointing=none"
        )
    for block in blocks[::every]:
        block.forward = partial(checkpoint, block.forward, **settings)


def repeated_blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the outermost repeated blocks: members of lists of two or more modules of one class."""
    for child in module.children():
        members = list(child.children())
        is_list = isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential))
        if is_list and len(members) > 1 and len({type(member) for member in members}) == 1:
            yield from members
        else:
            yield from repeated_blocks(child)
