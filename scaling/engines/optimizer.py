"""The update rule of every engine, so that strategies differ in where numbers live, not in the update.

torch's own AdamW, SGD and Adafactor; bitsandbytes for what torch has not: AdamW with 8-bit moments, and Lion.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, assert_never, cast

import torch
from torch import nn

from scaling.lr_scales import LrScale, require_used, scale_of
from strategies.job import Job, OptimizerName

LION_BETAS: Final = (0.9, 0.99)
"""Chen et al. 2023, arXiv:2302.06675, section 4.1: the defaults of the rule, and of bitsandbytes."""


LR_SCALE: Final = "lr_scale"
"""Of a group, and the mark of a parameter: what the run's learning rate is multiplied by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """What the update rule needs besides the learning rate, which the loop sets before each step."""

    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9
    """Of gradient descent; AdamW has ``betas``."""
    lr_scales: tuple[LrScale, ...] = ()
    """Parameters whose learning rate is not the run's."""


def split_by_decay(
    model: nn.Module, settings: OptimizerSettings | None = None
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters that weight decay applies to, and the others: norms, biases, 1-d tensors.

    Call it before parameters are sharded: a shard is flat and has lost its shape. Each one is marked with the factor of
    its learning rate, which `make_optimizer` groups by.

    Raises:
        ConfigError: a factor is given for parameters that there are not.
    """
    scales = settings.lr_scales if settings else ()
    if scales:
        require_used([name for name, each in model.named_parameters() if each.requires_grad], scales)
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_bias = "bias" in name.rpartition(".")[2]  # also the stacked biases of expert layers, which are 2-d
            (undecayed if parameter.dim() < 2 or is_bias else decayed).append(parameter)
            if scales:
                setattr(parameter, LR_SCALE, scale_of(name, scales))
    return decayed, undecayed


def copy_lr_scale(weight: nn.Parameter, master: nn.Parameter) -> None:
    """Mark ``master`` with the factor of the learning rate of the weight that it stands for."""
    if hasattr(weight, LR_SCALE):
        setattr(master, LR_SCALE, getattr(weight, LR_SCALE))


def make_optimizer(
    decayed: Sequence[nn.Parameter], undecayed: Sequence[nn.Parameter], settings: OptimizerSettings, *, job: Job
) -> torch.optim.Optimizer:
    """Return the job's update rule over two groups, without and with decay, leaving out an empty group."""
    match job.optimizer:
        case OptimizerName.ADAMW:
            return make_adamw(decayed, undecayed, settings, fused=job.fused_optimizer)
        case OptimizerName.SGD:
            return make_sgd(decayed, undecayed, settings, fused=job.fused_optimizer)
        case OptimizerName.ADAFACTOR:
            # No fused kernel exists: instead of all parameters at once it takes one after the other.
            rule: Any = partial(torch.optim.Adafactor, foreach=not job.fused_optimizer)
        case OptimizerName.ADAMW_8BIT:
            rule = partial(import_bitsandbytes().optim.AdamW8bit, betas=settings.betas, eps=settings.epsilon)
        case OptimizerName.LION:
            rule = partial(import_bitsandbytes().optim.Lion32bit, betas=LION_BETAS)
        case _:
            assert_never(job.optimizer)
    return cast(torch.optim.Optimizer, rule(_groups(decayed, undecayed, settings), lr=0.0))


def import_bitsandbytes() -> Any:
    """Return the module; only the rules that need it import it: `scaling.check_plan` sees to it that it is there."""
    # It says on import what kernels of other operators could be faster; nothing here uses those.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import bitsandbytes

    return bitsandbytes


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
    """Return the groups, with decay first, and within each those with the run's own learning rate first."""
    groups: list[dict[str, Any]] = []
    for parameters, decay in ((decayed, settings.weight_decay), (undecayed, 0.0)):
        by_scale: dict[float, list[nn.Parameter]] = {1.0: []}
        for parameter in parameters:
            by_scale.setdefault(getattr(parameter, LR_SCALE, 1.0), []).append(parameter)
        groups += [{"params": each, "weight_decay": decay, LR_SCALE: scale} for scale, each in by_scale.items()]
    return [group for group in groups if group["params"]]


def _kernel(fused: bool) -> dict[str, Any]:
    """Return which of torch's implementations runs: by name, since its own choice differs between devices."""
    return {"fused": True} if fused else {"foreach": True}
