"""How long an optimizer step of our trainer takes, and how much it holds, beside other loops of the same training.

Method: the same model (Llama, 6 blocks of 256, vocabulary 4096), batch (2 ranks, 2 micro batches of 2 samples of 128
tokens), fp32, AdamW (torch's fused kernel), clipping. Our trainer (`scaling.trainer.train`, meter off, its numbers read
and records made every step) and the other loop live in the same processes and take turns, step by step, so that what
else the machine does meets both alike; a barrier stands before and after every step. The ratio is that of neighbours;
reported are its median over all turns after the first ones and the middle half. The others: a minimal loop by hand in
DDP, DeepSpeed ZeRO-2 and FSDP2, whose samples lie in memory and whose loss is this rank's own; the loop of accelerate's
documentation; Hugging Face's Trainer with logging off, and without DDP's search for unused parameters. Plans are the
planner's, so buckets are equal where the other loop can be told them.

Memory: peak bytes of live tensors by the storage meter over 3 steps on the rank that holds most, DDP on 2 ranks: ours
and the Trainer, for the same model, then for one with a vocabulary of 151,936 where ours computes the loss fused.
Usage: ``python -m benchmarks.step_time`` on a machine that does nothing else; writes
``benchmarks/results/step_time.json``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.environment import environment
from benchmarks.parity_models import Demo, planner
from benchmarks.step_time_loops import Baseline, accelerate_steps, hand_written_steps, our_steps
from benchmarks.step_time_trainer import run_trainer
from scaling.local_ranks import run_ranks
from scaling.measured_ranks import measure_ranks
from scaling.meter import Meter, highest
from strategies.decision import Decision
from strategies.estimate import Phase
from strategies.job import Job, LossImplementation, Precision
from strategies.plan import StrategyName
from strategies.search import FixedParts

RESULTS = Path(__file__).parent / "results" / "step_time.json"
MODELS = Path(__file__).parent / "models"
RANKS, SEQ_LEN, MICRO_BATCH_SIZE, ACCUMULATION = 2, 128, 2, 2
TURNS, WARM_UP = 60, 4
"""Of which the first ones make optimizer states and learn the order of modules."""
MEMORY_STEPS = 3
LONGER = 512
"""Tokens of a sample where logits are much of the memory; with fewer the states are, which are the same for both."""
PAIRS: tuple[tuple[StrategyName, Baseline], ...] = (
    (StrategyName.DDP, "hand-written"),
    (StrategyName.ZERO2, "hand-written"),
    (StrategyName.FSDP2, "hand-written"),
    (StrategyName.DDP, "accelerate"),
    (StrategyName.DDP, "Trainer"),
)
TIME_LIMITS: dict[Baseline, float] = {"hand-written": 1.01, "accelerate": 1.0, "Trainer": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """Ours beside one other loop."""

    strategy: StrategyName
    other: Baseline
    turns: int
    our_median_s: float
    other_median_s: float
    ratio: float
    """Ours over the other's, the median of all turns."""
    ratio_quarter: float
    ratio_three_quarters: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Ours beside the Trainer."""

    model: str
    tokens: int
    """Of a micro batch on one rank."""
    our_loss: LossImplementation
    our_bytes: int
    trainer_bytes: int
    ratio: float
    limit: float


def main() -> int:
    """Measure, print, store; return 1 if a ratio is above its limit."""
    times = []
    for strategy, other in PAIRS:
        row = timed(strategy, other)
        print(
            f"{row.strategy:6} against {row.other:13} {row.our_median_s:.3f} s, {row.other_median_s:.3f} s: ratio "
            f"{row.ratio:.3f} (middle half {row.ratio_quarter:.3f} to {row.ratio_three_quarters:.3f}, limit "
            f"{row.limit})",
            flush=True,
        )
        times.append(row)
    memory = [
        peaks("llama-gqa", LossImplementation.STANDARD, seq_len=SEQ_LEN, limit=1.0),
        *(
            peaks("qwen2-vocabulary", loss, seq_len=seq_len, limit=limit)
            for seq_len in (SEQ_LEN, LONGER)
            for loss, limit in ((LossImplementation.STANDARD, 1.0), (LossImplementation.FUSED, 0.6))
        ),
    ]
    for each in memory:
        print(
            f"{each.model}, {each.tokens} tokens, {each.our_loss} loss: {each.our_bytes / 2**20:.1f} MiB, Trainer "
            f"{each.trainer_bytes / 2**20:.1f} MiB: ratio {each.ratio:.3f} (limit {each.limit})"
        )
    stored = {
        "times": [asdict(row) for row in times],
        "memory": [asdict(row) for row in memory],
        "environment": environment(),
    }
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    return int(any(row.ratio > row.limit for row in (*times, *memory)))


def timed(strategy: StrategyName, other: Baseline, *, model: str = "llama-gqa", turns: int = TURNS) -> TimeRow:
    """Return the step times of our trainer and another loop that take turns."""
    decision = plan(model, strategy)
    program = partial(take_turns, decision, other, turns)
    pairs = run_ranks(program, world_size=RANKS, timeout_s=600)[0][WARM_UP:]
    ratios = [ours / others for ours, others in pairs]
    quarter, median, three_quarters = statistics.quantiles(ratios, n=4)
    return TimeRow(
        strategy=strategy,
        other=other,
        turns=len(pairs),
        our_median_s=statistics.median(ours for ours, _ in pairs),
        other_median_s=statistics.median(others for _, others in pairs),
        ratio=median,
        ratio_quarter=quarter,
        ratio_three_quarters=three_quarters,
        limit=TIME_LIMITS[other],
    )


def plan(
    model: str,
    strategy: StrategyName,
    *,
    loss: LossImplementation = LossImplementation.STANDARD,
    seq_len: int = SEQ_LEN,
) -> Decision:
    """Return the planner's decision on CPU ranks, with the benchmark's batch."""
    job = Job(
        seq_len=seq_len,
        global_batch_size=RANKS * MICRO_BATCH_SIZE * ACCUMULATION,
        precision=Precision.FP32,
        loss=loss,
    )
    demo = Demo(name=model, config=str(MODELS / f"{model}.json"))
    decision: Decision = planner(demo, job, num_ranks=RANKS)(
        FixedParts(strategy=strategy, micro_batch_size=MICRO_BATCH_SIZE)
    )
    return decision


def take_turns(decision: Decision, other: Baseline, turns: int, device: torch.device) -> list[tuple[float, float]]:
    """Return the seconds of our step and the other's in every turn; runs in every rank."""
    ours = our_steps(decision, steps=turns)
    pairs: list[tuple[float, float]] = []
    watch = Watch()

    def turn() -> None:
        other_s = watch.stop()
        watch.start()
        next(ours)
        pairs.append((watch.stop(), other_s))
        watch.start()

    watch.start()
    if other == "Trainer":
        run_trainer(decision, steps=turns, between=turn)
    else:
        others = _steps(decision, other)
        for _ in range(turns):
            next(others)
            turn()
    return pairs


def _steps(decision: Decision, other: Baseline) -> Iterator[object]:
    return accelerate_steps(decision) if other == "accelerate" else hand_written_steps(decision)


class Watch:
    """Times what all ranks do, from the moment the last one begins to the moment the last one has ended."""

    def start(self) -> None:
        dist.barrier()
        self._start = time.perf_counter()

    def stop(self) -> float:
        dist.barrier()
        return time.perf_counter() - self._start


def peaks(model: str, our_loss: LossImplementation, *, seq_len: int, limit: float) -> MemoryRow:
    """Return the peaks of our trainer and the Trainer."""
    ours = _peak(partial(_our_program, plan(model, StrategyName.DDP, loss=our_loss, seq_len=seq_len)))
    trainers = _peak(partial(_trainer_program, plan(model, StrategyName.DDP, seq_len=seq_len)))
    return MemoryRow(
        model=model,
        tokens=MICRO_BATCH_SIZE * seq_len,
        our_loss=our_loss,
        our_bytes=ours,
        trainer_bytes=trainers,
        ratio=ours / trainers,
        limit=limit,
    )


def _peak(program: Callable[[Meter], object]) -> int:
    return highest(measure_ranks(program, world_size=RANKS)).peak_allocated_bytes


def _our_program(decision: Decision, meter: Meter) -> object:
    with meter.phase(Phase.BACKWARD):  # one for all: only the peak is asked for
        steps = our_steps(decision, steps=MEMORY_STEPS)
        for _ in range(MEMORY_STEPS):
            next(steps)
    return steps


def _trainer_program(decision: Decision, meter: Meter) -> object:
    with meter.phase(Phase.BACKWARD):
        return run_trainer(decision, steps=MEMORY_STEPS)


if __name__ == "__main__":
    sys.exit(main())
