"""What every rank runs: steps of one variant after the other, and how far from plain PyTorch each one ends."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from scaling.batch import Batch
from scaling.engines.base import Engine
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.loop import train_step
from scaling.meter import NoMeter
from scaling.schedule import LearningRate
from scaling.tasks.base import Task
from scaling.train_config import TrainConfig
from strategies.decision import Decision
from strategies.serialize import to_json


class MicroBatches(Protocol):
    """Where batches come from."""

    def micro_batches(self, step: int, *, rank: int, world_size: int) -> Sequence[Batch]:
        """Return a rank's micro batches of optimizer step ``step``, counted from 0."""


class Problem(Protocol):
    """What is trained; goes to every rank, which makes its own model and opens its own data."""

    def model(self, decision: Decision) -> nn.Module:
        """Return the model with its first weights, on the CPU, without noise in its forward pass."""

    def data(self, decision: Decision) -> MicroBatches:
        """Return the batches, cut as the plan says."""

    def task(self, decision: Decision) -> Task | None:
        """Return what the loss is; None for causal language modelling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One variant of one problem, as it goes to the ranks."""

    key: str
    """Names its outcome; a file name."""
    problem: Problem
    decision: Decision
    config: TrainConfig
    reference: Path
    """The parameters of plain PyTorch by name, as torch.save writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    parameter_difference: float
    """From those of plain PyTorch, absolute, the largest of all after the last step."""
    fingerprint: str
    """Of all parameters: equal for two runs that end at the same bits."""
    seconds: float
    """With building the engine; the ranks share this machine's cores."""


def run_one_by_one(runs: Sequence[Run], out: Path, device: torch.device) -> None:
    """Run them one after the other; rank 0 leaves each one's outcome in ``out`` as KEY.json when it has ended."""
    for run in runs:
        outcome = _outcome(run, device)
        if torch.distributed.get_rank() == 0:
            (out / f"{run.key}.json").write_text(to_json(outcome))
        gc.collect()  # engines hang in cycles with what they hold


def _outcome(run: Run, device: torch.device) -> Outcome:
    start = time.perf_counter()
    model, task = run.problem.model(run.decision), run.problem.task(run.decision)
    engine = make_engine(model, run.decision, config=run.config, device=device, task=task)
    losses, norms = run_steps(engine, run.problem.data(run.decision), run.config)
    difference, fingerprint = _compare(engine.gathered_parameters(), torch.load(run.reference, mmap=True))
    engine.close()
    return Outcome(
        losses=losses,
        norms=norms,
        parameter_difference=difference,
        fingerprint=fingerprint,
        seconds=time.perf_counter() - start,
    )


def make_engine(
    model: nn.Module, decision: Decision, *, config: TrainConfig, device: torch.device, task: Task | None = None
) -> Engine:
    """Return the plan's engine, unmetered."""
    return build_engine(
        model,
        decision=decision,
        settings=OptimizerSettings(weight_decay=config.weight_decay),
        device=device,
        meter=NoMeter(),
        task=task,
    )


def run_steps(engine: Engine, data: MicroBatches, config: TrainConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the loss and the gradient norm of every step."""
    rate = LearningRate(config)
    losses, norms = [], []
    for step in range(config.steps):
        engine.set_learning_rate(rate.at(engine.update_state.num_updates))
        result = train_step(engine, data.micro_batches(step, rank=engine.rank, world_size=engine.data_parallel_size))
        losses.append(float(result.mean_loss))
        norms.append(float(result.grad_norm))
    return tuple(losses), tuple(norms)


def _compare(parameters: Iterator[tuple[str, torch.Tensor]], expected: Mapping[str, torch.Tensor]) -> tuple[float, str]:
    """Return the largest absolute difference, and the fingerprint; takes every parameter, on every rank."""
    difference, digest, missing = torch.zeros((), dtype=torch.float64), hashlib.blake2b(digest_size=16), set(expected)
    for name, parameter in parameters:
        mine = parameter.detach().cpu()
        # torch.maximum, since Python's max would lose a NaN.
        difference = torch.maximum(difference, (mine.double() - expected[name].double()).abs().max())
        digest.update(mine.contiguous().view(-1).view(torch.uint8).numpy().data)
        missing.discard(name)
    assert not missing, f"the engine gave no {', '.join(sorted(missing))}"
    return float(difference), digest.hexdigest()
