"""LoRA adapters and frozen parts on a real model: modules named and computed as Hugging Face PEFT does.

PEFT itself is not needed. Source: PEFT 0.17, tuners/lora/layer.py (Linear.forward, reset_lora_parameters).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast, final

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from scaling.errors import ModelError
from scaling.recompute import repeated_blocks
from strategies.job import Job
from strategies.trained import Lora, is_frozen

ADAPTER = "default"
"""PEFT's name of an adapter that was given none."""


@final
class LoraLinear(nn.Module):
    """A frozen linear layer with a trained product of two thin ones beside it."""

    def __init__(self, base: nn.Module, lora: Lora) -> None:
        super().__init__()
        inputs, outputs = _sizes(base)
        weight = cast(Tensor, base.weight)
        self.base_layer = base
        self.lora_dropout = nn.ModuleDict({ADAPTER: nn.Identity()})
        self.lora_A = nn.ModuleDict({ADAPTER: _thin(inputs, lora.rank, like=weight)})
        self.lora_B = nn.ModuleDict({ADAPTER: _thin(lora.rank, outputs, like=weight)})
        self.scaling = lora.alpha / lora.rank
        nn.init.kaiming_uniform_(cast(nn.Linear, self.lora_A[ADAPTER]).weight, a=math.sqrt(5))
        nn.init.zeros_(cast(nn.Linear, self.lora_B[ADAPTER]).weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output with the adapter's added, in the layer's own format."""
        result: Tensor = self.base_layer(x)
        output_format = result.dtype
        first, second = self.lora_A[ADAPTER], self.lora_B[ADAPTER]
        x = x.to(cast(nn.Linear, first).weight.dtype)
        result = result + second(first(self.lora_dropout[ADAPTER](x))) * self.scaling
        return result.to(output_format)


def choose_trained(model: nn.Module, job: Job) -> None:
    """Put the job's adapters in and freeze what is not trained, in place.

    Raises:
        ModelError: the model has no layer, or no parameter, of a name that is given.
    """
    if job.lora:
        model.requires_grad_(False)
        _adapt(model, job.lora)
    for name, parameter in model.named_parameters():
        if is_frozen(name, job.freeze):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"freeze={list(job.freeze)} freezes every parameter of the model; leave some to train")


def _adapt(model: nn.Module, lora: Lora) -> None:
    """Wrap the linear layers of blocks that ``lora`` names."""
    in_blocks = {id(module) for block in repeated_blocks(model) for module in block.modules()}
    chosen = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and id(module) in in_blocks and lora.targets(name)
    ]
    if not chosen:
        raise ModelError(
            f"lora.target_modules={list(lora.target_modules)}: the model's blocks have no linear layer of that name"
        )
    for name, module in chosen:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, LoraLinear(module, lora))


def merged(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return ``state`` with the adapters of ``model`` added to the weights beside them, under the names without them.

    ``state`` may be a part of the model, in which a layer is whole or absent.
    Source: PEFT 0.17, tuners/lora/layer.py, get_delta_weight: the product in fp32, added in the weight's format.
    """
    found = dict(state)
    for name, layer in adapted_layers(model):
        if f"{name}.lora_A.{ADAPTER}.weight" not in found:
            continue
        first, second = (found.pop(f"{name}.{part}.{ADAPTER}.weight").float() for part in ("lora_A", "lora_B"))
        for parameter, _ in layer.base_layer.named_parameters():
            found[f"{name}.{parameter}"] = found.pop(f"{name}.base_layer.{parameter}")
        weight = found[f"{name}.weight"]
        change = second @ first * layer.scaling
        change = change.T if isinstance(layer.base_layer, Conv1D) else change
        found[f"{name}.weight"] = (weight + change.to(weight.dtype)).contiguous()
    return found


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    """Yield the layers that have an adapter, by name."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLinear))


def _sizes(base: Any) -> tuple[int, int]:
    """Return inputs and outputs; GPT-2's ``Conv1D`` holds its weight the other way round."""
    shape = tuple(base.weight.shape)
    return (shape[0], shape[1]) if isinstance(base, Conv1D) else (shape[1], shape[0])


def _thin(inputs: int, outputs: int, *, like: Tensor) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, device=like.device, dtype=like.dtype)
