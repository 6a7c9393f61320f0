"""What the caching allocator holds beyond live tensors: replays of traced runs, and the smallest device each fits in.

Method: the trainer itself is traced as rank 0 of each plan with CUDA's kernels, three steps, and the log is replayed
through the allocator with expandable and with fixed segments. `needed` is the smallest capacity at which the replay
does not run out of memory: under pressure the allocator gives cached memory back, so a run fits in less than it
reserves on a large device.

Usage: ``python -m benchmarks.allocator_slack [STRATEGY ...]``; writes ``benchmarks/results/allocator_slack.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from scaling.trace import TraceLog, profile, replay
from scaling.trace.training import trace_training
from strategies.cluster import Cluster, gpu_preset
from strategies.decision import Decision
from strategies.estimate import NO_ESTIMATE
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.units import MIB

RESULT = Path(__file__).parent / "results" / "allocator_slack.json"
MODELS = ("llama-3.2-1b", "qwen2.5-1.5b", "gpt2-xl")
SHAPES = ((1, 1024), (4, 1024), (2, 4096))
"""Micro batch, sequence length."""
NUM_STEPS = 3
RESOLUTION = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One traced run on eight GPUs."""

    model: str
    strategy: StrategyName
    activation_checkpointing: ActivationCheckpointing
    micro_batch_size: int
    seq_len: int
    accumulation_steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Bytes of one run."""

    allocated: int
    phase: str
    causes: dict[str, int]
    reserved_expandable: int
    reserved_fixed: int
    needed_expandable: int
    needed_fixed: int


def setups() -> Iterator[Setup]:
    """Yield the runs."""
    recomputes = (ActivationCheckpointing.NONE, ActivationCheckpointing.FULL)
    for model, strategy, recompute, (micro, seq) in product(MODELS, StrategyName, recomputes, SHAPES):
        if model == "gpt2-xl" and seq > 1024:
            continue
        yield Setup(
            model=model,
            strategy=strategy,
            activation_checkpointing=recompute,
            micro_batch_size=micro,
            seq_len=seq,
            accumulation_steps=2 if micro == 4 else 1,
        )


def trace(setup: Setup) -> TraceLog:
    """Return the log of rank 0 of 8."""
    return trace_training(_decision(setup), num_steps=NUM_STEPS)


def _decision(setup: Setup) -> Decision:
    spec = load_model_spec(setup.model)
    job = Job(seq_len=setup.seq_len, global_batch_size=8 * setup.micro_batch_size * setup.accumulation_steps)
    return Decision(
        model=setup.model,
        num_params=spec.num_params,
        cluster=Cluster(gpu=gpu_preset("H100-80GB-SXM"), gpus=8, gpus_per_node=8),
        job=job,
        plan=Plan(
            strategy=setup.strategy,
            micro_batch_size=setup.micro_batch_size,
            gradient_accumulation_steps=setup.accumulation_steps,
            activation_checkpointing=setup.activation_checkpointing,
            buckets=STRATEGIES[setup.strategy].buckets(spec, job),
        ),
        estimate=NO_ESTIMATE,
    )


def replayed(log: TraceLog) -> Replayed:
    """Return what the allocator holds over the log."""
    peak = profile(log).peak
    expandable, fixed = (replay(log, expandable_segments=flag) for flag in (True, False))
    return Replayed(
        allocated=peak.total_bytes,
        phase=peak.phase,
        causes=dict(peak.causes.items()),
        reserved_expandable=expandable.peak_reserved_bytes,
        reserved_fixed=fixed.peak_reserved_bytes,
        needed_expandable=_smallest(log, peak.total_bytes, expandable.peak_reserved_bytes, expandable_segments=True),
        needed_fixed=_smallest(log, peak.total_bytes, fixed.peak_reserved_bytes, expandable_segments=False),
    )


def _smallest(log: TraceLog, low: int, high: int, *, expandable_segments: bool) -> int:
    """Return the smallest capacity, to a resolution, at which the replay ends."""
    runs = partial(replay, log, expandable_segments=expandable_segments)
    while high - low > max(RESOLUTION, high // 500):
        middle = (low + high) // 2
        if runs(capacity_bytes=middle).out_of_memory is None:
            high = middle
        else:
            low = middle
    return high


def _stored() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text())["rows"]
    return rows


def main(strategies: Sequence[str]) -> None:
    """Run all, or those strategies anew whose names are given."""
    rows = [row for row in _stored() if row["strategy"] not in strategies] if strategies else []
    for setup in setups():
        if strategies and setup.strategy not in strategies:
            continue
        row = replayed(trace(setup))
        rows.append(asdict(setup) | asdict(row))
        found = [row.reserved_expandable, row.reserved_fixed, row.needed_expandable, row.needed_fixed]
        ratios = " ".join(f"{value / row.allocated:.3f}" for value in found)
        print(
            *asdict(setup).values(), f"{row.allocated / 2**30:.2f} GiB", row.phase, ratios, file=sys.stderr, flush=True
        )
        RESULT.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
