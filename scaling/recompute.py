"""Activation checkpointing block by block: which blocks, and what selective checkpointing keeps of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

aten = torch.ops.aten

PRODUCTS = frozenset({aten.mm.default, aten.addmm.default})
"""Of linear layers; every second one's output is kept."""
KEPT_OPS = PRODUCTS | {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}
"""What is expensive to compute again. The products of eager attention are not among them: their outputs are quadratic
in the sequence length."""


def selective_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of forward and of the recomputation of one block.

    Kept are the outputs of fused attention and of the first, third, fifth, ... product of a linear layer: torchtitan's
    choice, the most widely used (torchtitan/models/llama, op-level selective activation checkpointing).
    """
    contexts: Any = create_selective_checkpoint_contexts
    forward, recomputation = contexts(_KeepEverySecondProduct())
    return forward, _KeptOnly(recomputation)


class _KeptOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Asks torch's recomputation context for the kept outputs only, and runs everything else.

    torch (2.13, utils/checkpoint.py) wants every operator of the forward pass to come again, and no other: but engines
    that gather weights do so by other operators in the recomputation than in the forward pass.
    """

    def __init__(self, kept: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in KEPT_OPS:
            return self._kept.__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


@final
class _KeepEverySecondProduct:
    """The policy of one block; it counts the products of the forward pass and of the recomputation apart."""

    def __init__(self) -> None:
        self._num_products = {False: 0, True: 0}

    def __call__(self, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op in PRODUCTS:
            self._num_products[context.is_recompute] += 1
            if self._num_products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if op in KEPT_OPS else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_library_blocks(model: Any, *, selective: bool, every: int) -> None:
    """Make blocks 0, ``every``, 2 * ``every``, ... of a transformers model drop their activations.

    Raises:
        ValueError: the model does not support it.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    # transformers 5.24 renamed the method; the old name works until version 6.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable(checkpoint_settings(selective=selective))
    layers = [child for child in model.modules() if isinstance(child, GradientCheckpointingLayer)]
    if every > 1 and not layers:
        raise ValueError(f"{type(model).__name__} has no layers that can be told apart; use checkpoint_every=1")
    for index, layer in enumerate(layers):
        if index % every:
            layer.gradient_checkpointing = False


def checkpoint_settings(*, selective: bool) -> dict[str, Any]:
    """Return the keyword arguments of ``torch.utils.checkpoint.checkpoint``."""
    settings: dict[str, Any] = {"use_reentrant": False}
    return settings | {"context_fn": selective_contexts} if selective else settings


def repeated_blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the outermost repeated blocks: members of lists of two or more modules of one class."""
    for child in module.children():
        members = list(child.children())
        is_list = isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential))
        if is_list and len(members) > 1 and len({type(member) for member in members}) == 1:
            yield from members
        else:
            yield from repeated_blocks(child)
