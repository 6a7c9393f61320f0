"""The update rule of every engine: torch's own, so that strategies differ in where numbers live, not in the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from strategies.job import Job, OptimizerName


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """What the update rule needs besides the learning rate, which the loop sets before each step."""

    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9
    """Of gradient descent; AdamW has ``betas``."""


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters that weight decay applies to, and the others: norms, biases, 1-d tensors.

    Call it before parameters are sharded: a shard is flat and has lost its shape.
    """
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_bias = "bias" in name.rpartition(".")[2]  # also the stacked biases of expert layers, which are 2-d
            (undecayed if parameter.dim() < 2 or is_bias else decayed).append(parameter)
    return decayed, undecayed


def make_optimizer(
    decayed: Sequence[nn.Parameter], undecayed: Sequence[nn.Parameter], settings: OptimizerSettings, *, job: Job
) -> torch.optim.Optimizer:
    """Return the job's update rule over two groups, without and with decay, leaving out an empty group."""
    if job.optimizer is OptimizerName.SGD:
        return make_sgd(decayed, undecayed, settings, fused=job.fused_optimizer)
    assert job.optimizer is OptimizerName.ADAMW, job.optimizer  # `require_trainable` lets no other one through
    return make_adamw(decayed, undecayed, settings, fused=job.fused_optimizer)


def make_adamw(
    decayed: Sequence[nn.Parameter],
    undecayed: Sequence[nn.Parameter],
    settings: OptimizerSettings,
    *,
    fused: bool = True,
) -> torch.optim.AdamW:
    """Return AdamW over the groups that are not empty.

    The fused kernel makes no copies of its operands, where torch's for-each one holds one of all second moments. On CPU
    it is bit-equal for any cut of the parameters into shards and 8 times faster than a loop (torch 2.13.0, 20e6
    elements, one thread); tests/scaling/engines/test_optimizer.py checks the equality.
    """
    # The loop sets the learning rate before every step; this one is never used.
    return torch.optim.AdamW(
        _groups(decayed, undecayed, settings),
        lr=0.0,
        betas=settings.betas,
        eps=settings.epsilon,
        **_kernel(fused),
    )


def make_sgd(
    decayed: Sequence[nn.Parameter], undecayed: Sequence[nn.Parameter], settings: OptimizerSettings, *, fused: bool
) -> torch.optim.SGD:
    """Return gradient descent with momentum over the groups that are not empty; decay is part of the gradient."""
    groups = _groups(decayed, undecayed, settings)
    return torch.optim.SGD(groups, lr=0.0, momentum=settings.momentum, **_kernel(fused))


def _groups(
    decayed: Sequence[nn.Parameter], undecayed: Sequence[nn.Parameter], settings: OptimizerSettings
) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = [
        {"params": list(decayed), "weight_decay": settings.weight_decay},
        {"params": list(undecayed), "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _kernel(fused: bool) -> dict[str, Any]:
    """Return which of torch's implementations runs: by name, since its own choice differs between devices."""
    return {"fused": True} if fused else {"foreach": True}
