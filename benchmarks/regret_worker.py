"""Runs in every rank: a few timed steps of one plan after the other. Rank 0 stores the seconds.

python -m benchmarks.regret_worker PLANS.json OUT.json (under torchrun)
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from scaling.batch import causal_batch
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import end_process_group, join_process_group, read_launch_environment
from scaling.loop import train_step
from scaling.meter import NoMeter
from scaling.models import InitialWeights, build_config, build_model
from strategies.decision import Decision
from strategies.load_model import resolve_model
from strategies.serialize import read_json

WARM_UP_STEPS = 2
"""Optimizer states appear in the first; ZeRO-3 learns the order of modules in the first two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the ranks are to run."""

    decisions: tuple[Decision, ...]
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of a plan's steps, on the slowest rank."""

    fastest_s: float
    median_s: float


def main(given: Path, out: Path) -> None:
    assignment = read_json(Assignment, given)
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=300)
    timings = [timed(decision, steps=assignment.steps) for decision in assignment.decisions]
    if launch.is_main:
        out.write_text(json.dumps([dataclasses.asdict(timing) for timing in timings]))
    end_process_group()


def timed(decision: Decision, *, steps: int) -> Timing:
    """Return the seconds of ``steps`` optimizer steps of a plan, in an engine made for it."""
    config = build_config(resolve_model(decision.model))
    engine = build_engine(
        build_model(config, InitialWeights(folder=None), decision=decision, seed=0),
        decision=decision,
        settings=OptimizerSettings(weight_decay=0.1),
        device=torch.device("cpu"),
        meter=NoMeter(),
    )
    engine.set_learning_rate(1e-4)
    shape = (decision.plan.micro_batch_size, decision.job.seq_len)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [
        causal_batch(torch.randint(config.get_text_config().vocab_size, shape, generator=generator))
        for _ in range(decision.plan.gradient_accumulation_steps)
    ]
    seconds = []
    for step in range(WARM_UP_STEPS + steps):
        dist.barrier()
        start = time.perf_counter()
        train_step(engine, batches)
        dist.barrier()
        if step >= WARM_UP_STEPS:
            seconds.append(time.perf_counter() - start)
    engine.close()
    del engine
    gc.collect()
    return Timing(fastest_s=min(seconds), median_s=sorted(seconds)[len(seconds) // 2])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
