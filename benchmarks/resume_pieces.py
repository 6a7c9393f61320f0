"""Pieces of training that start from nothing or from a checkpoint and end in another one, on real ranks."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.parity_models import SEED, Demo, planner, training
from scaling.checkpoint.checkpoints import Checkpoints
from scaling.checkpoint.manifest import TrainingState
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.reader import CheckpointReader
from scaling.checkpoint.snapshot import RunFacts
from scaling.local_ranks import run_ranks
from scaling.loop import train_step
from scaling.parity.ranks import make_engine
from scaling.parity.variants import VARIANTS
from scaling.schedule import learning_rate_at
from strategies.job import Job, Precision

SEQ_LEN, GLOBAL_BATCH_SIZE = 32, 12
"""Twelve samples are cut for one, two, three and four ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a training run."""

    way: str
    """Name of a variant of `scaling.parity`."""
    demo: Demo
    num_steps: int
    """Of the whole run, which the learning rate follows."""
    start: str | None
    """Folder of the checkpoint to go on from; None: fresh weights."""
    until: int
    """Optimizer steps of the whole run that are done at the end."""
    out: str
    """Folder in which the last checkpoint appears."""
    precision: Precision = Precision.FP32


def train_pieces(pieces: Sequence[Piece], *, num_ranks: int) -> None:
    """Train one piece after the other on so many ranks, and leave their checkpoints."""
    run_ranks(partial(_in_rank, pieces), world_size=num_ranks, timeout_s=300)


def _in_rank(pieces: Sequence[Piece], device: torch.device) -> None:
    meeting = Meeting(timeout_s=300.0)
    for piece in pieces:
        _train_piece(piece, meeting, device)
        gc.collect()  # engines hang in cycles with what they hold


def _train_piece(piece: Piece, meeting: Meeting, device: torch.device) -> None:
    job = Job(seq_len=SEQ_LEN, global_batch_size=GLOBAL_BATCH_SIZE, precision=piece.precision, gradient_clipping=1.0)
    plan = planner(piece.demo, job, num_ranks=dist.get_world_size())
    decision = plan(replace(VARIANTS[piece.way], micro_batch_size=1))
    config = training(steps=piece.num_steps, learning_rate=3e-3)
    engine = make_engine(piece.demo.model(decision), decision, config=config, device=device)
    torch.manual_seed(SEED + 1 + engine.rank)  # dropout, another one on every rank
    facts = RunFacts(strategy=piece.way, seed=SEED, identity={})
    first = 0
    if piece.start:
        first = Checkpoints(Path(piece.out), facts, meeting=meeting).load(engine, Path(piece.start)).step
    data = piece.demo.data(decision)
    for step in range(first, piece.until):
        rate = learning_rate_at(
            engine.update_state.num_updates,
            peak=config.learning_rate,
            schedule=config.schedule,
            warmup_steps=config.warmup_steps,
            num_steps=config.steps,
        )
        engine.set_learning_rate(rate)
        train_step(engine, data.micro_batches(step, rank=engine.rank, world_size=engine.data_parallel_size))
    state = TrainingState(step=piece.until, num_samples_seen=piece.until * GLOBAL_BATCH_SIZE)
    # Another object: one that has gone on from a checkpoint does not save the same step again.
    Checkpoints(Path(piece.out), facts, meeting=meeting).save(engine, state)
    engine.close()


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
