"""A training loop in plain PyTorch, one process, the whole global batch at once: what every strategy must reproduce.

Written without this project's loop, loss, engines, optimizer and schedule: the library's own loss of its model, its
schedules, torch's optimizers. The model, its first weights and the batches are shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import get_scheduler

from scaling.batch import Batch
from scaling.errors import ConfigError
from scaling.schedule import ScheduleName
from scaling.tasks.base import Task
from scaling.train_config import TrainConfig
from strategies.job import Job, OptimizerName

LIBRARY_SCHEDULES = {
    ScheduleName.LINEAR: "linear",
    ScheduleName.COSINE: "cosine",
    ScheduleName.CONSTANT: "constant_with_warmup",
}
"""Names of transformers' schedules."""
MOMENTUM = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What a run went through."""

    losses: tuple[float, ...]
    """Before each update, nats per token or sample."""
    norms: tuple[float, ...]
    """Of the whole gradient, before clipping."""
    parameters: Mapping[str, torch.Tensor]
    """All of them after the last step; tied ones once."""


def train_plainly(
    model: nn.Module, steps: Iterable[Sequence[Batch]], *, config: TrainConfig, job: Job, task: Task | None
) -> Trajectory:
    """Return the trajectory of ``model`` over the whole batches of every step.

    Raises:
        ConfigError: the plain loop has no such schedule, optimizer or loss.
    """
    for name, value in (("label_smoothing", config.label_smoothing), ("lr_scale", config.lr_scale)):
        if value:
            raise ConfigError(f"{name}={value}: the plain loop that is compared with has none; leave it out")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = _optimizer(parameters, config, job)
    schedule = _schedule(optimizer, config)
    losses, norms = [], []
    for batches in steps:
        optimizer.zero_grad()
        losses.append(sum(_backward(model, batch, share, task) for batch, share in _shares(batches)))
        for parameter in parameters:
            if parameter.grad is None:  # took no part: a zero gradient, as in ZeRO's flat buffers, so that it decays
                parameter.grad = torch.zeros_like(parameter)
        norms.append(clip(parameters, max_norm=job.gradient_clipping))
        optimizer.step()
        schedule.step()
    kept = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return Trajectory(losses=tuple(losses), norms=tuple(norms), parameters=kept)


def clip(parameters: list[nn.Parameter], *, max_norm: float) -> float:
    """Scale the gradients down to ``max_norm`` where they are above (0: never); return their norm before.

    torch.nn.utils.clip_grad_norm_ with the sum in fp64: its fp32 sum on a CPU was 6e-5 off for llama-demo.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    if max_norm:
        for gradient in gradients:
            gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


def _shares(batches: Sequence[Batch]) -> list[tuple[Batch, float]]:
    """Return every batch with its share of the step's tokens or samples; one batch is the rule."""
    num_units = sum(batch.num_loss_units for batch in batches)
    return [(batch, batch.num_loss_units / num_units) for batch in batches]


def _backward(model: nn.Module, batch: Batch, share: float, task: Task | None) -> float:
    """Add the gradient of the library's loss, which is a mean over the batch, times the share; return that loss."""
    if task is not None and task.couples_samples:  # CLIP's: a sample's label is its place in the batch
        loss = model(**batch.inputs, return_loss=True).loss * share
    else:
        loss = model(**batch.inputs, labels=batch.labels).loss * share
    loss.backward()
    return float(loss.detach())


def _optimizer(parameters: list[nn.Parameter], config: TrainConfig, job: Job) -> torch.optim.Optimizer:
    groups = [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0},
    ]
    match job.optimizer:
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(groups, lr=config.learning_rate)
        case OptimizerName.SGD:
            return torch.optim.SGD(groups, lr=config.learning_rate, momentum=MOMENTUM)
    raise ConfigError(f"optimizer={job.optimizer} has no plain counterpart to compare with; take adamw or sgd")


def _schedule(optimizer: torch.optim.Optimizer, config: TrainConfig) -> Any:
    if config.schedule not in LIBRARY_SCHEDULES:
        raise ConfigError(
            f"schedule={config.schedule} has no plain counterpart to compare with; take one of "
            f"{', '.join(LIBRARY_SCHEDULES)}"
        )
    return get_scheduler(
        LIBRARY_SCHEDULES[config.schedule],
        optimizer,
        num_warmup_steps=config.warmup_steps,
        num_training_steps=config.steps,
    )
