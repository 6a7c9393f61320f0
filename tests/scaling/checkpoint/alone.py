"""One process as the only rank, with a small engine whose state is known to the last number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from scaling.checkpoint.checkpoints import Checkpoints
from scaling.checkpoint.manifest import TrainingState
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.snapshot import RunFacts
from scaling.engines.base import Engine
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.loop import train_step
from scaling.meter import NoMeter
from scaling.models import DTYPES
from strategies.job import Precision
from tests.scaling.decisions import toy_decision
from tests.scaling.engines.toy import Tokens, Toy

FACTS = RunFacts(strategy="ddp", seed=0, identity={"data_hash": "abc"}, documents={"plan.json": "{}\n"})


@contextmanager
def one_rank() -> Iterator[None]:
    """Be the only rank of a process group while the context lasts."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


TOKENS = Tokens()
BATCH = TOKENS.batch([(3.0, 1.0, 2.0), (1.0, 5.0, 4.0)])


def start_engine(model: nn.Module | None = None, *, precision: Precision = Precision.FP32) -> Engine:
    """Return a DDP engine of one rank around a toy."""
    engine = build_engine(
        (Toy(TOKENS.gradients) if model is None else model).to(DTYPES[precision]),
        decision=toy_decision("ddp", world_size=1, accumulation=1, precision=precision),
        settings=OptimizerSettings(weight_decay=0.1),
        device=torch.device("cpu"),
        meter=NoMeter(),
    )
    engine.set_learning_rate(0.01)
    return engine


def train(engine: Engine, num_steps: int) -> None:
    for _ in range(num_steps):
        train_step(engine, [BATCH])


def numbers(engine: Engine) -> dict[str, torch.Tensor]:
    """Return a copy of everything that training goes on from."""
    return {f"{each.kind}/{each.name}": each.tensor.clone() for each in engine.state_slices()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def checkpoints(parent: Path, facts: RunFacts = FACTS, *, keep_last: int = 2, keep_best: int = 0) -> Checkpoints:
    return Checkpoints(parent, facts, meeting=Meeting(timeout_s=60), keep_last=keep_last, keep_best=keep_best)


def save(engine: Engine, step: int, parent: Path) -> Path:
    """Return the folder of a new checkpoint."""
    folder = checkpoints(parent).save(engine, state(step))
    assert folder is not None
    return folder


def state(step: int, eval_loss: float | None = None) -> TrainingState:
    return TrainingState(step=step, num_samples_seen=2 * step, eval_loss=eval_loss)


def flip_bit(path: Path, *, at: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Have the last byte of a file changed while the context lasts."""
    flip_bit(path, at=-1)
    try:
        yield
    finally:
        flip_bit(path, at=-1)
