"""How three times grow: planning with GPUs and model, a step with accumulation, a save with ranks.

Method:
- Planning: the whole process of ``scaling plan``, timed from outside (`planning_time` has the command, more runs, and
  DeepSpeed's estimators beside it); five models from half a billion to 405 billion parameters, 1 to 1024 GPUs, a global
  batch of four samples a GPU, offload allowed; the fastest of ``--runs`` after one that warms up, all cases in turn.
  Where nothing fits (exit code 3) the planner also searches what would, and that time is in it.
- Steps: our engines on two real CPU ranks, llama-gqa (6 blocks of 256, 4096 words), fp32, micro batches of one sample
  of 128 tokens, 1 to 8 a step. All plans run in the same processes, a few steps each (`regret_worker.timed`), in rounds
  and in a new order every round; a plan's time is the fastest step of all rounds, since what disturbs a step only makes
  it slower. The line through the points says what a micro batch costs and what a step costs beside.
- Saves: `save_cost` on 1, 2 and 4 ranks, as stored in ``benchmarks/results/save_cost.json``: run that one first for new
  figures. The ranks share this machine's one disk, so only the state a rank holds shrinks with their number.

Usage: ``python -m benchmarks.scale [--runs 3] [--rounds 3]`` (four minutes on two free cores); writes
``benchmarks/results/scale.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import environment
from benchmarks.parity_models import Demo, planner
from benchmarks.planning_time import plan_command, seconds, told
from benchmarks.regret_worker import timed
from benchmarks.scale_report import Planning, Save, Steps, plot, report
from scaling.local_ranks import run_ranks
from strategies.decision import Decision
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.plan import StrategyName
from strategies.search import FixedParts
from strategies.units import MIB

RESULTS = Path(__file__).parent / "results"
PLANNED_MODELS = ("qwen2.5-0.5b", "llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
GPU_COUNTS = (1, 4, 16, 64, 256, 1024)
RANKS, SEQ_LEN = 2, 128
MODEL = Demo(name="llama-gqa", config=str(Path(__file__).parent / "models" / "llama-gqa.json"))
STRATEGIES = (StrategyName.DDP, StrategyName.ZERO2, StrategyName.ZERO3, StrategyName.FSDP2)
ACCUMULATION = (1, 2, 4, 8)
TIMED_STEPS = 3


def main() -> None:
    """Time everything, store and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of every planning process")
    parser.add_argument("--rounds", type=int, default=3, help="of all engines")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    planning = planned(list(product(PLANNED_MODELS, GPU_COUNTS)), runs=options.runs)
    steps = stepped(rounds=options.rounds)
    saves = stored_saves(json.loads((RESULTS / "save_cost.json").read_text())["measured"])
    content = {
        "environment": environment(),
        "load_before": load,
        "planning": [asdict(each) for each in planning],
        "steps": [asdict(each) for each in steps],
        "saves": [asdict(each) for each in saves],
    }
    (RESULTS / "scale.json").write_text(json.dumps(content, indent=1) + "\n")
    text = report(planning, steps, saves, load=load)
    (RESULTS / "scale.md").write_text(text)
    plot(planning, steps, saves, path=RESULTS / "scale.png")
    print(text)


def planned(cases: Sequence[tuple[str, int]], *, runs: int) -> list[Planning]:
    """Return the time of planning each model on so many GPUs, all cases in turn."""
    commands = [plan_command(*case) for case in cases]
    exit_codes = [told(command)["exit_code"] for command in commands]
    turns = [[seconds(command) for command in commands] for _ in range(runs)]
    return [
        Planning(
            model=model,
            num_params=load_model_spec(model).num_params,
            gpus=gpus,
            exit_code=exit_code,
            fastest_s=min(times),
            median_s=statistics.median(times),
        )
        for (model, gpus), exit_code, times in zip(cases, exit_codes, zip(*turns, strict=True), strict=True)
    ]


def stepped(*, rounds: int) -> list[Steps]:
    """Return the step times of every strategy, by micro batches a step."""
    decisions = [decision_for(*pair) for pair in product(STRATEGIES, ACCUMULATION)]
    fastest = run_ranks(partial(in_rank, decisions, rounds), world_size=RANKS, timeout_s=900)[0]
    times = dict(zip(product(STRATEGIES, ACCUMULATION), fastest, strict=True))
    return [
        Steps(strategy=strategy.value, seconds={count: times[strategy, count] for count in ACCUMULATION})
        for strategy in STRATEGIES
    ]


def decision_for(strategy: StrategyName, accumulation: int) -> Decision:
    job = Job(seq_len=SEQ_LEN, global_batch_size=RANKS * accumulation, precision=Precision.FP32)
    plan: Decision = planner(MODEL, job, num_ranks=RANKS)(FixedParts(strategy=strategy, micro_batch_size=1))
    return plan


def in_rank(decisions: Sequence[Decision], rounds: int, device: torch.device) -> list[float]:
    """Return the fastest step of every plan; runs in every rank, in the same order in all."""
    order, fastest = list(range(len(decisions))), [float("inf")] * len(decisions)
    for number in range(rounds):
        random.Random(number).shuffle(order)
        for place in order:
            fastest[place] = min(fastest[place], timed(decisions[place], steps=TIMED_STEPS).fastest_s)
    return fastest


def stored_saves(measured: Sequence[dict[str, Any]]) -> list[Save]:
    """Return what `save_cost` has stored: seconds until the checkpoint is complete."""
    return [
        Save(
            size=each["size"],
            ranks=each["num_ranks"],
            mib_a_rank=each["bytes_per_rank"] / MIB,
            seconds={cost["kind"]: cost["complete_s"] for cost in each["costs"]},
        )
        for each in measured
    ]


if __name__ == "__main__":
    main()
