"""Parameters without a dimension (CLIP's ``logit_scale``): given one for training, and saved as they were.

deepspeed 0.19.8 cannot broadcast one (engine.py, ``_broadcast_model``: a view as bytes needs a dimension), and torch
2.13's ``fully_shard`` cannot cut one. A tensor of one element computes the same wherever a scalar is broadcast.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_NAMES = "scalar_parameter_names"


def widen_scalars(model: nn.Module) -> None:
    """Give every parameter without a dimension one, in place, before an engine takes the model."""
    names = [name for name, parameter in model.named_parameters() if parameter.dim() == 0]
    for name in names:
        parent, _, last = name.rpartition(".")
        scalar = model.get_parameter(name)
        setattr(model.get_submodule(parent), last, nn.Parameter(scalar.detach().reshape(1), scalar.requires_grad))
    setattr(model, _NAMES, tuple(names))


def as_saved(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return ``state`` with the shapes that the model's own class gives its parameters."""
    names = getattr(model, _NAMES, ())
    return {name: tensor.reshape(()) if name in names else tensor for name, tensor in state.items()}
