"""Rank 0 of N in one process: equal to rank 0 of N real processes, and how long it takes up to N = 1024.

Method: the small Llama takes three steps, as rank 0 of 2 and 4 simulated ranks and of 2 and 4 gloo processes; every
span (one forward, one backward, one step) must agree to the byte in every cause, on device and host. Then N = 8 to
1024, simulated only, timed. Usage: ``python -m benchmarks.simulated_ranks``; writes
``benchmarks/results/simulated_ranks.json`` and ``.md``; exit code 1 if a span differs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.bytes_per_parameter import IMPORTED_ONCE
from benchmarks.environment import environment
from benchmarks.small_llama import VOCAB_SIZE, Setup, run
from scaling.measured_ranks import measure_ranks
from scaling.meter import Measurement
from scaling.simulate import forked_from, simulate

RESULTS = Path(__file__).parent / "results"
BASE = Setup(framework="deepspeed")
SETUPS = {
    "ddp": replace(BASE, framework="ddp", precision="fp32"),
    "ddp, bf16, accumulation 2": replace(BASE, framework="ddp", gradient_accumulation_steps=2),
    "fsdp2": replace(BASE, framework="fsdp2"),
    "fsdp2, accumulation 2": replace(BASE, framework="fsdp2", gradient_accumulation_steps=2),
    "zero 0": BASE,
    "zero 1": replace(BASE, zero_stage=1),
    "zero 1, accumulation 2": replace(BASE, zero_stage=1, gradient_accumulation_steps=2),
    "zero 2": replace(BASE, zero_stage=2),
    "zero 2, accumulation 2": replace(BASE, zero_stage=2, gradient_accumulation_steps=2),
    "zero 3": replace(BASE, zero_stage=3),
    "zero 3, accumulation 2": replace(BASE, zero_stage=3, gradient_accumulation_steps=2),
    "zero 2, optimizer offload": replace(BASE, zero_stage=2, offload_optimizer=True),
    "zero 3, optimizer offload": replace(BASE, zero_stage=3, offload_optimizer=True),
    "zero 3, full offload": replace(BASE, zero_stage=3, offload_optimizer=True, offload_param=True),
}
REAL_SIZES = (2, 4)
TIMED = ("ddp", "fsdp2", "zero 1", "zero 2", "zero 3")
TIMED_SIZES = (8, 64, 256, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One setup on simulated and on real ranks."""

    name: str
    world_size: int
    num_spans: int
    num_equal: int
    """Spans equal to the byte in every cause."""
    peak_bytes: int
    real_peak_bytes: int
    num_late_frees: int
    """Tensors that gloo's thread let go after the program, in the real run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long three simulated steps took, process start and model construction included."""

    name: str
    world_size: int
    wall_s: float
    num_operators: int


def main() -> int:
    """Compare, time, print and store."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    pairs = [pair(name, world_size) for world_size in REAL_SIZES for name in SETUPS]
    timings = [timing(name, world_size) for name in TIMED for world_size in TIMED_SIZES]
    table = "\n".join([*_pairs_table(pairs), "", *_timings_table(timings)])
    print(table)
    stored = {
        "environment": environment(),
        "pairs": [asdict(pair) for pair in pairs],
        "timings": [asdict(timing) for timing in timings],
    }
    (RESULTS / "simulated_ranks.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "simulated_ranks.md").write_text(table + "\n")
    return int(any(pair.num_equal != pair.num_spans for pair in pairs))


def pair(name: str, world_size: int) -> Pair:
    """Return the comparison of one setup; both runs start from nothing."""
    program = partial(run, SETUPS[name])
    simulated = simulate(program, world_size=world_size, vocab_size=VOCAB_SIZE, context=forked_from(IMPORTED_ONCE))
    real = measure_ranks(program, world_size=world_size, vocab_size=VOCAB_SIZE)[0]
    print(f"{name}, N {world_size}", file=sys.stderr)
    return Pair(
        name=name,
        world_size=world_size,
        num_spans=len(real.spans),
        num_equal=_num_equal(simulated, real),
        peak_bytes=simulated.peak_allocated_bytes,
        real_peak_bytes=real.peak_allocated_bytes,
        num_late_frees=real.num_late_frees,
    )


def timing(name: str, world_size: int) -> Timing:
    """Return the cost of one simulation."""
    start = time.perf_counter()
    measurement = simulate(
        partial(run, SETUPS[name]), world_size=world_size, vocab_size=VOCAB_SIZE, context=forked_from(IMPORTED_ONCE)
    )
    return Timing(
        name=name,
        world_size=world_size,
        wall_s=round(time.perf_counter() - start, 1),
        num_operators=measurement.num_operators,
    )


def _num_equal(simulated: Measurement, real: Measurement) -> int:
    assert len(simulated.spans) == len(real.spans)
    return sum(ours == theirs for ours, theirs in zip(simulated.spans, real.spans, strict=True))


def _pairs_table(pairs: Sequence[Pair]) -> Iterator[str]:
    yield "| setup | N | spans | equal to the byte in every cause | peak, simulated | peak, gloo | late frees |"
    yield "|---|---|---|---|---|---|---|"
    for row in pairs:
        yield (
            f"| {row.name} | {row.world_size} | {row.num_spans} | {row.num_equal} | {row.peak_bytes:,} "
            f"| {row.real_peak_bytes:,} | {row.num_late_frees} |"
        )


WHAT_GROWS = (
    "What grows with N is work in Python, rank by rank, and with it the operators to follow. ZeRO-3: DeepSpeed's",
    "reduce-scatter cuts every gradient into N views (deepspeed 0.19.8, runtime/comm/coalesced_collectives.py), in",
    "every micro step. FSDP2: sharding cuts every weight into N chunks and makes an empty tensor for each rank",
    "beyond its rows (torch 2.13, fsdp/_fully_shard, _chunk_with_empty), once. ZeRO-1, ZeRO-2 and DDP do little of",
    "the kind.",
)


def _timings_table(timings: Sequence[Timing]) -> Iterator[str]:
    yield "Three simulated steps, seconds (operators):"
    yield ""
    yield "| setup | " + " | ".join(f"N = {size}" for size in TIMED_SIZES) + " |"
    yield "|---" * (1 + len(TIMED_SIZES)) + "|"
    for name in TIMED:
        cells = [f"{row.wall_s:.0f} ({row.num_operators:,})" for row in timings if row.name == name]
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""
    yield from WHAT_GROWS


if __name__ == "__main__":
    sys.exit(main())
