"""Where the numbers of a training run live on this rank: live views, the same for saving and for restoring.

Every engine spreads its states as contiguous ranges of flattened tensors: a whole one (DDP), an equal part (ZeRO) or
rows (FSDP2). A checkpoint is made of such ranges, so one written under any of them is read under any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from scaling.errors import EngineError

WEIGHT = "weight"
"""A parameter as it is trained: the fp32 master where there is one, which the 16-bit weight follows from."""
BUFFER = "buffer"


class Holder(StrEnum):
    """Which ranks hold the same numbers, and thereby who writes them."""

    THIS_RANK = "this rank"
    ALL_RANKS = "all ranks"
    """Each writes its share."""
    MAIN_RANK = "main rank"
    """All have them and rank 0 writes its own: they may differ, as running means do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSlice:
    """One contiguous range of one tensor of the training state, as a live view of where it is kept."""

    kind: str
    """`WEIGHT`, `BUFFER`, or the optimizer's own name of a state: exp_avg, step, …"""
    name: str
    """Of the parameter or buffer."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    """First element of the range in the flattened whole."""
    tensor: torch.Tensor
    """1-d, possibly empty; writing to it changes the engine."""
    holder: Holder

    @property
    def num_elements(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)


def whole_slice(kind: str, name: str, tensor: torch.Tensor, holder: Holder) -> StateSlice:
    """Return the slice that is all of ``tensor``."""
    return StateSlice(kind=kind, name=name, shape=tuple(tensor.shape), start=0, tensor=flat(tensor), holder=holder)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as a 1-d view of the same memory.

    Raises:
        EngineError: its elements do not lie one after the other.
    """
    if not tensor.is_contiguous():
        raise EngineError(
            f"a tensor of shape {tuple(tensor.shape)} has strides {tensor.stride()} and cannot be saved piece by "
            f"piece; make the model's parameters contiguous"
        )
    return tensor.detach().view(-1)


def buffer_slices(model: torch.nn.Module) -> Iterator[StateSlice]:
    """Yield the buffers that belong to the model's state (running means, not tables made again from the config)."""
    kept = model.state_dict(keep_vars=True).keys()
    for name, buffer in model.named_buffers():
        if name in kept:
            yield whole_slice(BUFFER, name, buffer, Holder.MAIN_RANK)


def moment_slices(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, name: str, holder: Holder = Holder.ALL_RANKS
) -> Iterator[StateSlice]:
    """Yield the optimizer's states of one whole parameter."""
    for kind, state in tensor_states(optimizer, parameter).items():
        yield whole_slice(kind, name, state, holder)


def number_slice(kind: str, name: str, state: torch.Tensor) -> StateSlice:
    """Return the slice of a state that is one number for the whole parameter, as counts of steps are.

    Raises:
        EngineError: it is more, and cannot be cut as the sharded parameter is.
    """
    if state.numel() != 1:
        raise EngineError(
            f"the optimizer's state {kind} of {name} has shape {tuple(state.shape)}, which is not the parameter's: it "
            f"cannot be saved under a strategy that shards it; train under ddp, or with another optimizer"
        )
    return whole_slice(kind, name, state, Holder.ALL_RANKS)


def tensor_states(optimizer: Any, parameter: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return the states of ``parameter`` that are tensors, by the optimizer's names; none before the first step."""
    states = optimizer.state.get(parameter, {})
    return {kind: state for kind, state in states.items() if isinstance(state, torch.Tensor)}


def create_moments(optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer make its states, which it does in its first step, to be overwritten then."""
    create_moments_of(optimizer, [(group, member) for group in optimizer.param_groups for member in group["params"]])


@torch.no_grad()
def create_moments_of(optimizer: torch.optim.Optimizer, members: Sequence[tuple[dict[str, Any], torch.Tensor]]) -> None:
    """Let the optimizer make the states of tensors of its groups; those that have some already keep them.

    A tensor at a time, so that one gradient of zeros exists beside them. A learning rate of zero leaves the weights.
    """
    every_group = optimizer.param_groups
    for group, tensor in members:
        if optimizer.state.get(tensor):
            continue
        before, gradient = (group["params"], group["lr"]), tensor.grad
        group["params"], group["lr"], tensor.grad = [tensor], 0.0, torch.zeros_like(tensor)
        optimizer.param_groups = [group]
        optimizer.step()
        (group["params"], group["lr"]), tensor.grad = before, gradient
    optimizer.param_groups = every_group
