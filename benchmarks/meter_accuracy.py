"""The meter against an independent count, the CPU allocator's events in torch.profiler, in every phase of three steps.

Method: the small Llama trains as rank 0 of four simulated ranks, and as one of two real gloo ranks, while both count;
the peak of every phase must agree within 0.1 %. Usage: ``python -m benchmarks.meter_accuracy``; writes
``benchmarks/results/meter_accuracy.json`` and ``.md``; exit code 1 if a phase differs by more.

What differs: one-number temporaries of kernels (8 to 28 bytes), and the scratch of bf16 matrix products on a CPU
(oneDNN, up to 134,144 bytes inside ``aten::mm``). Real ranks of ZeRO-3 and FSDP2 are left out: there gloo clones the
input of each reduce-scatter and frees the clone in its own thread, which the profiler does not watch, so that its count
grows from step to step; `tests/scaling/test_simulate.py` holds them to the simulated ranks instead, to the byte.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.allocator_count import SpanCount, counted
from benchmarks.environment import environment
from benchmarks.small_llama import VOCAB_SIZE, Setup, run
from scaling.meter import Measurement, Meter, Span

RESULTS = Path(__file__).parent / "results"
LARGEST_DIFFERENCE = 1e-3
NUM_SIMULATED, NUM_REAL = 4, 2

CASES = {
    "ddp": Setup(framework="ddp", precision="fp32"),
    "ddp, bf16, accumulation 2": Setup(framework="ddp", gradient_accumulation_steps=2),
    "zero 0": Setup(framework="deepspeed", zero_stage=0),
    "zero 1": Setup(framework="deepspeed", zero_stage=1),
    "zero 1, accumulation 2": Setup(framework="deepspeed", zero_stage=1, gradient_accumulation_steps=2),
    "zero 2": Setup(framework="deepspeed", zero_stage=2),
    "zero 2, fused AdamW": Setup(framework="deepspeed", zero_stage=2, fused=True),
    "zero 3": Setup(framework="deepspeed", zero_stage=3),
    "zero 3, accumulation 2": Setup(framework="deepspeed", zero_stage=3, gradient_accumulation_steps=2),
    "fsdp2": Setup(framework="fsdp2"),
}
REAL = ("ddp", "zero 0", "zero 1", "zero 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Peak of one phase, counted twice."""

    case: str
    ranks: str
    phase: str
    step: int
    meter_bytes: int
    allocator_bytes: int

    @property
    def difference(self) -> float:
        return self.allocator_bytes / self.meter_bytes - 1


def main() -> int:
    """Run every case, print the worst difference of each and store all rows."""
    rows = [row for name in CASES for row in compare(name, ranks="simulated")]
    rows += [row for name in REAL for row in compare(name, ranks="gloo")]
    table = "\n".join(_table(rows))
    print(table)
    stored = {"environment": environment(), "rows": [asdict(row) | {"difference": row.difference} for row in rows]}
    (RESULTS / "meter_accuracy.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "meter_accuracy.md").write_text(table + "\n")
    return int(any(abs(row.difference) > LARGEST_DIFFERENCE for row in rows))


def compare(name: str, *, ranks: str) -> list[Row]:
    """Return both counts of rank 0, phase by phase."""
    from scaling.measured_ranks import measure_ranks
    from scaling.simulate import simulate

    with tempfile.TemporaryDirectory() as folder:
        program = partial(run_counted, CASES[name], Path(folder))
        if ranks == "simulated":
            measurement = simulate(program, world_size=NUM_SIMULATED, vocab_size=VOCAB_SIZE)
        else:
            measurement = measure_ranks(program, world_size=NUM_REAL, vocab_size=VOCAB_SIZE)[0]
        counts: list[SpanCount] = pickle.loads((Path(folder) / "0").read_bytes())
    return list(pair(measurement, counts, case=name, ranks=f"{measurement.world_size} {ranks}"))


def run_counted(setup: Setup, folder: Path, meter: Meter) -> object:
    """Train while the allocator counts too; leave its counts in a file named after the rank."""
    import torch.distributed as dist

    kept, counts = counted(partial(run, setup), meter)
    (folder / str(dist.get_rank())).write_bytes(pickle.dumps(counts))
    return kept


def pair(measurement: Measurement, counts: list[SpanCount], *, case: str, ranks: str) -> Iterator[Row]:
    """Yield a row for every span; both lists must name the same phases in the same order."""
    for span, count in zip(measurement.spans, counts, strict=True):
        assert span.phase.value == count.phase
        yield Row(
            case=case,
            ranks=ranks,
            phase=count.phase,
            step=span.step,
            meter_bytes=_total(span),
            allocator_bytes=count.peak_bytes,
        )


def _total(span: Span) -> int:
    assert not span.host.total_bytes, "device and host peak at different moments; compare cases without offload"
    return span.device.total_bytes


def _table(rows: list[Row]) -> Iterator[str]:
    yield "| case | ranks | phases compared | equal to the byte | largest difference | bytes | where |"
    yield "|---|---|---|---|---|---|---|"
    for case, ranks in dict.fromkeys((row.case, row.ranks) for row in rows):
        group = [row for row in rows if (row.case, row.ranks) == (case, ranks)]
        worst = max(group, key=lambda row: abs(row.difference))
        equal = sum(row.meter_bytes == row.allocator_bytes for row in group)
        missed = worst.allocator_bytes - worst.meter_bytes
        where = f"{worst.phase}, step {worst.step}" if missed else ""
        yield f"| {case} | {ranks} | {len(group)} | {equal} | {worst.difference:.6%} | {missed} | {where} |"


if __name__ == "__main__":
    sys.exit(main())
