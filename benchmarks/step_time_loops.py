"""The loops that ours is timed against, as their users write them, and ours; all one optimizer step at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from scaling.data.order import Draw
from scaling.engines.build import build_engine
from scaling.engines.deepspeed import import_deepspeed
from scaling.engines.optimizer import OptimizerSettings
from scaling.interrupt import RunStatus
from scaling.launch_env import read_launch_environment
from scaling.memory_watch import MemoryWatch
from scaling.models import InitialWeights, build_config, build_model
from scaling.recovery.guard import RunGuard
from scaling.saving import Saving
from scaling.train_config import TrainConfig
from scaling.trainer import train
from scaling.training_data import TrainingData, open_training_data
from scaling.watching.run_watch import RunWatch
from strategies.decision import Decision
from strategies.load_model import resolve_model

Baseline = Literal["hand-written", "accelerate", "Trainer"]
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
CPU = torch.device("cpu")


def fresh_model(decision: Decision) -> nn.Module:
    """Return the model with its first weights."""
    return build_model(
        build_config(resolve_model(decision.model)), InitialWeights(folder=None), decision=decision, seed=0
    )


def settings(decision: Decision, *, steps: int) -> TrainConfig:
    """Return what our trainer is told: nothing metered, evaluated or saved."""
    return TrainConfig(
        plan=Path("-"),
        out=Path(tempfile.gettempdir()) / "step-time",
        steps=steps,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        measure_steps=0,
    )


def open_data(decision: Decision, config: TrainConfig) -> TrainingData:
    model_config = build_config(resolve_model(decision.model))
    return open_training_data(config, decision, model_config=model_config, show_progress=False)


def our_steps(decision: Decision, *, steps: int) -> Iterator[object]:
    """Yield after every optimizer step of `scaling.trainer.train`, with its meter off."""
    config, launch = settings(decision, steps=steps), read_launch_environment(os.environ)
    data, model = open_data(decision, config), fresh_model(decision)
    memory = MemoryWatch(device=CPU, launch=launch, num_steps=0, vocab_size=1)
    watch = RunWatch(memory, device=CPU, max_norm=decision.job.gradient_clipping, utilisation=None)
    guard = RunGuard(decision, launch, RunStatus(), device=CPU, config=config)
    engine = build_engine(
        model,
        decision=decision,
        settings=OptimizerSettings(weight_decay=WEIGHT_DECAY),
        device=CPU,
        meter=watch.clock,
        task=data.task,
    )
    saving = Saving(config, decision, data)
    yield from train(engine, data, config, watch=watch, saving=saving, guard=guard, first_step=0)


def hand_written_steps(decision: Decision) -> Iterator[float]:
    """Yield the loss after every step of a minimal loop, which takes its samples from a tensor in memory."""
    step = HAND_WRITTEN[decision.plan.strategy.value](fresh_model(decision), decision)
    batches = _own_batches(decision)
    while True:
        yield step(next(batches))


Step = Callable[[Sequence[torch.Tensor]], float]
"""One optimizer step over micro batches of ids; returns this rank's loss."""


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, decision: Decision) -> None:
    clip_grad_norm_(model.parameters(), decision.job.gradient_clipping)
    optimizer.step()
    optimizer.zero_grad()


def ddp_loop(model: nn.Module, decision: Decision) -> Step:
    wrapped = DistributedDataParallel(model)
    optimizer = adamw(model)

    def step(micro_batches: Sequence[torch.Tensor]) -> float:
        total = torch.zeros(())
        for index, ids in enumerate(micro_batches):
            with nullcontext() if index == len(micro_batches) - 1 else wrapped.no_sync():
                loss = wrapped(input_ids=ids, labels=ids).loss / len(micro_batches)
                loss.backward()
            total += loss.detach()
        update(model, optimizer, decision)
        return float(total)

    return step


def zero_loop(model: nn.Module, decision: Decision) -> Step:
    optimizer = adamw(model)
    deepspeed = import_deepspeed(CPU)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=decision.deepspeed_config())

    def step(micro_batches: Sequence[torch.Tensor]) -> float:
        total = torch.zeros(())
        for ids in micro_batches:
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
            total += loss.detach() / len(micro_batches)
        return float(total)

    return step


def fsdp2_loop(model: Any, decision: Decision) -> Step:
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = adamw(model)

    def step(micro_batches: Sequence[torch.Tensor]) -> float:
        total = torch.zeros(())
        for ids in micro_batches:
            loss = model(input_ids=ids, labels=ids).loss / len(micro_batches)
            loss.backward()
            total += loss.detach()
        update(model, optimizer, decision)
        return float(total)

    return step


HAND_WRITTEN: dict[str, Callable[[Any, Decision], Step]] = {
    "ddp": ddp_loop,
    "zero2": zero_loop,
    "fsdp2": fsdp2_loop,
}


def accelerate_steps(decision: Decision) -> Iterator[float]:
    """Yield the loss after every step of the loop that accelerate's documentation shows."""
    from accelerate import Accelerator

    accelerator = Accelerator(**decision.accelerator_kwargs())
    model = fresh_model(decision)
    optimizer = adamw(model)
    loader: Any = DataLoader(Samples(decision), batch_size=decision.plan.micro_batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    total = torch.zeros(())
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), decision.job.gradient_clipping)
            optimizer.step()
            optimizer.zero_grad()
        total += loss.detach() / decision.plan.gradient_accumulation_steps
        if accelerator.sync_gradients:
            yield float(total)
            total = torch.zeros(())


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The samples of our trainer, one at a time, as a library's loop takes them."""

    def __init__(self, decision: Decision) -> None:
        self._data = open_data(decision, settings(decision, steps=1)).train

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        one = np.array([index])
        ids = self._data.batch(Draw(ids=one, positions=one)).inputs["input_ids"][0]
        return {"input_ids": ids, "labels": ids}


def _own_batches(decision: Decision) -> Iterator[list[torch.Tensor]]:
    """Yield this rank's micro batches of step after step, all held in memory."""
    samples, plan = Samples(decision), decision.plan
    per_step = plan.micro_batch_size * plan.gradient_accumulation_steps
    rows = torch.stack([samples[index]["input_ids"] for index in range(64 * per_step)])
    step = dist.get_rank()
    while True:
        first = step * per_step % len(rows)
        yield list(rows[first : first + per_step].split(plan.micro_batch_size))
        step += dist.get_world_size()
