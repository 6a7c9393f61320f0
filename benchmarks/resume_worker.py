"""Runs in every rank: pieces of training that start from nothing or from a checkpoint and end in another one.

python -m benchmarks.resume_worker PIECES.json (under torchrun for several ranks)
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.parity_worker import Samples, Setting, plan
from scaling.checkpoint.checkpoints import Checkpoints, RunFacts
from scaling.checkpoint.manifest import TrainingState
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.reader import CheckpointReader
from scaling.engines.base import Engine
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import end_process_group, join_process_group, read_launch_environment
from scaling.loop import train_step
from scaling.meter import NoMeter
from scaling.models import InitialWeights, build_config, build_model
from scaling.schedule import ScheduleName, learning_rate_at
from strategies.decision import Decision
from strategies.load_model import resolve_model
from strategies.plan import OffloadDevice, StrategyName
from strategies.serialize import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to train the same model."""

    strategy: StrategyName
    offload_optimizer: OffloadDevice = OffloadDevice.NONE
    offload_param: OffloadDevice = OffloadDevice.NONE

    def decision(self, setting: Setting) -> Decision:
        """Return the plan of this way on the ranks that there are."""
        planned = plan(self.strategy, setting, num_ranks=dist.get_world_size())
        placed = replace(planned.plan, offload_optimizer=self.offload_optimizer, offload_param=self.offload_param)
        return replace(planned, plan=placed)


CPU = OffloadDevice.CPU
WAYS = {
    "ddp": Way(strategy=StrategyName.DDP),
    "zero1": Way(strategy=StrategyName.ZERO1),
    "zero2": Way(strategy=StrategyName.ZERO2),
    "zero3": Way(strategy=StrategyName.ZERO3),
    "zero2+cpu": Way(strategy=StrategyName.ZERO2, offload_optimizer=CPU),
    "zero3+cpu": Way(strategy=StrategyName.ZERO3, offload_optimizer=CPU, offload_param=CPU),
    "fsdp2": Way(strategy=StrategyName.FSDP2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a training run."""

    way: str
    setting: Setting
    start: str | None
    """Folder of the checkpoint to go on from; None: fresh weights."""
    until: int
    """Optimizer steps of the whole run that are done at the end."""
    out: str
    """Folder in which the last checkpoint appears."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What one launch does."""

    pieces: tuple[Piece, ...]


def main(pieces_path: Path) -> None:
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=300)
    for piece in read_json(Pieces, pieces_path).pieces:
        train_piece(piece)
    end_process_group()


def train_piece(piece: Piece) -> None:
    """Train one piece and leave its checkpoint."""
    setting = piece.setting
    samples = Samples(setting)
    engine = start_engine(piece)
    facts = RunFacts(strategy=piece.way, seed=setting.seed, identity={})
    checkpoints = Checkpoints(Path(piece.out), facts, meeting=Meeting(timeout_s=300.0))
    first = checkpoints.load(engine, Path(piece.start)).step if piece.start else 0
    for step in range(first, piece.until):
        engine.set_learning_rate(
            learning_rate_at(
                engine.update_state.num_updates,
                peak=setting.learning_rate,
                schedule=ScheduleName.COSINE,
                warmup_steps=setting.warmup_steps,
                num_steps=setting.num_steps,
            )
        )
        train_step(engine, samples.micro_batches(step, rank=engine.rank, world_size=engine.data_parallel_size))
    num_seen = piece.until * setting.global_batch_size
    checkpoints.save(engine, TrainingState(step=piece.until, num_samples_seen=num_seen))
    engine.close()


def start_engine(piece: Piece) -> Engine:
    """Return an engine with fresh weights."""
    setting = piece.setting
    decision = WAYS[piece.way].decision(setting)
    config = build_config(resolve_model(setting.model))
    engine = build_engine(
        build_model(config, InitialWeights(folder=None), decision=decision, seed=setting.seed),
        decision=decision,
        settings=OptimizerSettings(weight_decay=setting.weight_decay),
        device=torch.device("cpu"),
        meter=NoMeter(),
    )
    torch.manual_seed(setting.seed + 1 + engine.rank)
    return engine


def largest_difference(one: Path, other: Path) -> dict[str, float]:
    """Return, by kind of state, the largest difference between two checkpoints; 0.0 is bit-equal.

    Raises:
        KeyError: they do not hold the same tensors.
    """
    differences: dict[str, float] = {}
    with CheckpointReader(one) as first, CheckpointReader(other) as second:
        for kind, name in first.entries.keys() | second.entries.keys():
            left, right = first.whole(kind, name), second.whole(kind, name)
            found = 0.0 if torch.equal(left, right) else float((left.double() - right.double()).abs().max())
            differences[kind] = max(differences.get(kind, 0.0), found)
    return differences


if __name__ == "__main__":
    main(Path(sys.argv[1]))
