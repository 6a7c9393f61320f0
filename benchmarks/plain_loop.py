"""A training loop in plain PyTorch, one process, the whole global batch at once: what every strategy must reproduce.

Written without this project's loop, loss, engines, optimizer and schedule: transformers' model, loss and schedule,
torch's AdamW. Only the data are shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup

GlobalBatch = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
"""Ids and labels, both (global batch, seq), of a step counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What a run went through."""

    losses: list[float]
    """Before each update, nats per token."""
    norms: list[float]
    """Of the gradient, before clipping."""
    parameters: torch.Tensor
    """All of them after the last step, one after another."""


def train_plainly(
    config: Any,
    global_batch: GlobalBatch,
    *,
    num_steps: int,
    learning_rate: float,
    warmup_steps: int,
    weight_decay: float,
    max_norm: float,
    seed: int,
    rule: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> Trajectory:
    """Return the trajectory of a fresh fp32 model of ``config``."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.train()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = rule(groups, lr=learning_rate)
    schedule = get_cosine_schedule_with_warmup(optimizer, warmup_steps, num_steps)
    losses, norms = [], []
    for step in range(num_steps):
        ids, labels = global_batch(step)
        num_tokens = (labels[:, 1:] != -100).sum()
        loss = model(input_ids=ids, labels=labels, num_items_in_batch=num_tokens).loss
        optimizer.zero_grad()
        loss.backward()
        norms.append(clip(list(model.parameters()), max_norm=max_norm))
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return Trajectory(losses=losses, norms=norms, parameters=parameters)


def clip(parameters: list[torch.nn.Parameter], *, max_norm: float) -> float:
    """Scale the gradients down to ``max_norm`` where they are above; return their norm before.

    torch.nn.utils.clip_grad_norm_ with the sum in fp64: its fp32 sum on a CPU was 6e-5 off for llama-demo.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    for gradient in gradients:
        gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm
