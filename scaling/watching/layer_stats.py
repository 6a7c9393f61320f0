"""Gradient statistics by layer, under every engine: each rank looks at its own part of the gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from scaling.engines.base import Engine
from scaling.engines.gradient_norm import norm_in_fp64
from scaling.recompute import repeated_blocks
from scaling.watching.records import LayerGradient, LayerRecord


@dataclass(frozen=True, slots=True)
class _Found:
    """What was seen, on the device until it is read."""

    step: int
    scale: float
    squares: torch.Tensor
    largest: torch.Tensor


@final
class LayerStats:
    """Norm and largest element of the gradient of every layer, before clipping, in every ``every``-th step."""

    def __init__(self, engine: Engine, *, every: int) -> None:
        self._engine = engine
        self._every = every
        self._layer_of = layers_by_parameter(engine.model)
        self._names = tuple(dict.fromkeys(self._layer_of.values()))
        self._found: _Found | None = None

    @torch.no_grad()
    def look(self, step: int) -> None:
        """Look at complete gradients where ``step``, counted from 1, is one of those; two small collectives."""
        if step % self._every:
            return
        zero = self._engine.zero_scalar()
        squares, largest = dict.fromkeys(self._names, zero), dict.fromkeys(self._names, zero)
        for parameter, share in self._engine.gradient_shares():
            if share.numel():
                layer = self._layer_of[parameter]
                squares[layer] = squares[layer] + norm_in_fp64([share]).square().to(zero.device)
                highest = torch.linalg.vector_norm(share, ord=math.inf).double().to(zero.device)
                largest[layer] = torch.maximum(largest[layer], highest)
        self._found = _Found(
            step=step,
            scale=self._engine.update_state.scale,
            squares=self._engine.sum_over_ranks(torch.stack(list(squares.values()))),
            largest=self._engine.max_over_ranks(torch.stack(list(largest.values()))),
        )

    def record(self) -> LayerRecord | None:
        """Return what was found in the step that is just over, None where none was; waits for the device."""
        found, self._found = self._found, None
        if found is None:
            return None
        squares, largest = torch.stack([found.squares, found.largest]).tolist()
        return LayerRecord(
            step=found.step,
            layers={
                name: LayerGradient(grad_norm=math.sqrt(square) / found.scale, grad_max=maximum / found.scale)
                for name, square, maximum in zip(self._names, squares, largest, strict=True)
            },
        )


def layers_by_parameter(model: nn.Module) -> dict[str, str]:
    """Return the layer of every trained parameter: its repeated block, else the module that holds it."""
    modules = dict(model.named_modules())
    is_block = {id(block) for block in repeated_blocks(model)}
    layers: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            above = [name[:index] for index, letter in enumerate(name) if letter == "."]
            blocks = [path for path in above if id(modules[path]) in is_block]
            layers[name] = blocks[0] if blocks else (above[-1] if above else name)
    return layers
