"""A short run of the trainer on made-up samples, for measuring and tracing: its own engine, loss and loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scaling.batch import Batch
from scaling.engines.base import Engine
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.loop import evaluate, train_step
from scaling.meter import PhaseMeter
from scaling.models import kind_of
from scaling.ownership import Owners
from scaling.tasks.build import build_task
from scaling.tasks.example import example_batch
from scaling.train_config import TaskName
from strategies.decision import Decision
from strategies.estimate import Phase

SETTINGS = OptimizerSettings(weight_decay=0.01)
LEARNING_RATE = 1e-4
"""Neither changes what is allocated."""


def example(config: Any, decision: Decision) -> Batch:
    """Return a made-up batch as large as any of the plan's, for the model of this transformers configuration."""
    size, seq_len = decision.plan.micro_batch_size, decision.job.seq_len
    return example_batch(kind_of(config), config, micro_batch_size=size, seq_len=seq_len)


def rehearse(
    model: Any,
    make_batch: Callable[[], Batch],
    *,
    decision: Decision,
    num_steps: int,
    device: torch.device,
    meter: PhaseMeter,
    more_owners: Callable[[Engine], Sequence[Owners]] = lambda _: (),
) -> Engine:
    """Train ``num_steps`` on one batch, evaluate once, gather every weight as a save does; return the engine.

    The batch is made when the engine is there, as the first one of a run is.
    ``more_owners``: of tensors that the engine does not name itself, asked before the engine's own.
    """
    with meter.phase(Phase.INITIALISE):
        task = build_task(TaskName.AUTO, kind_of(model.config), loss=decision.job.loss)
        engine = build_engine(model, decision=decision, settings=SETTINGS, device=device, meter=meter, task=task)
    for owners in (*more_owners(engine), engine.owners):
        meter.attach(owners)
    engine.set_learning_rate(LEARNING_RATE)
    batch = make_batch()
    for _ in range(num_steps):
        train_step(engine, [batch] * decision.plan.gradient_accumulation_steps)
    evaluate(engine, [batch])
    with meter.phase(Phase.SAVE):
        # What a save holds on the device: tensor after tensor. The copies it makes go to host memory.
        for _ in engine.gathered_parameters():
            pass
    return engine
