"""Bytes per parameter of the real engines, by phase and cause, as rank 0 of N simulated ranks.

Method: the small Llama (29.5M parameters, 8 tokens) takes three optimizer steps under DeepSpeed stages 0 to 3, DDP,
FSDP2 and offload, each in a fresh process; the storage meter counts. Where rows of ``benchmarks/reference/`` overlap,
totals by phase and live bytes by cause are compared to their four decimals.
Usage: ``python -m benchmarks.bytes_per_parameter``; writes ``benchmarks/results/bytes_per_parameter.json`` and ``.md``;
exit code 1 if a compared value differs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bytes_per_parameter_table import markdown
from benchmarks.environment import environment
from benchmarks.reference_rows import Difference, compare
from benchmarks.small_llama import VOCAB_SIZE, Setup, num_parameters, run
from scaling.meter import Measurement
from scaling.simulate import forked_from, simulate
from strategies.estimate import MemoryProfile

RESULTS = Path(__file__).parent / "results"
WORLD_SIZES = (1, 2, 4, 8, 64)
BUCKETS = (5_000_000, 500_000_000)
BASE = Setup(framework="deepspeed")
IMPORTED_ONCE = ("deepspeed", "transformers.models.llama.modeling_llama", "benchmarks.small_llama", "scaling.meter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measured setup."""

    name: str
    setup: Setup
    measurement: Measurement
    wall_s: float


def main() -> int:
    """Measure every setup, compare, and store the table."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    results = [result for name, setup in setups() for result in measure(name, setup)]
    parameters = num_parameters(BASE)
    differences = [
        found for result in results for found in compare(result.setup, result.measurement, num_parameters=parameters)
    ]
    write(results, differences, parameters)
    wrong = [difference for difference in differences if not difference.equal]
    print(f"{len(differences) - len(wrong)} of {len(differences)} values equal the reference to its four decimals")
    return int(bool(wrong))


def setups() -> Iterator[tuple[str, Setup]]:
    """Yield (name, setup) of every row of the table, without the number of ranks."""
    for accumulation in (1, 4):
        base = replace(BASE, gradient_accumulation_steps=accumulation)
        for bucket in BUCKETS:
            yield from ((f"zero {stage}", replace(base, zero_stage=stage, bucket_size=bucket)) for stage in range(4))
            yield "ddp", replace(base, framework="ddp", precision="fp32", bucket_size=bucket)
        yield "ddp, bf16 weights", replace(base, framework="ddp")
        yield "fsdp2", replace(base, framework="fsdp2")
        yield "zero 2, optimizer offload", replace(base, zero_stage=2, offload_optimizer=True)
        yield "zero 3, optimizer offload", replace(base, zero_stage=3, offload_optimizer=True)
        yield "zero 3, full offload", replace(base, zero_stage=3, offload_optimizer=True, offload_param=True)
    for stage in (1, 2, 3):
        yield f"zero {stage}, fused AdamW", replace(BASE, zero_stage=stage, fused=True)
    # Accumulation 2 and fp32 are in the reference.
    for stage in range(4):
        yield f"zero {stage}, accumulation 2", replace(BASE, zero_stage=stage, gradient_accumulation_steps=2)
        yield f"zero {stage}, fp32", replace(BASE, zero_stage=stage, precision="fp32")


def measure(name: str, setup: Setup) -> Iterator[Result]:
    """Yield the setup at every number of ranks."""
    for world_size in WORLD_SIZES:
        start = time.perf_counter()
        measurement = simulate(
            partial(run, setup), world_size=world_size, vocab_size=VOCAB_SIZE, context=forked_from(IMPORTED_ONCE)
        )
        wall_s = time.perf_counter() - start
        print(f"{name}, N {world_size}: {wall_s:.0f} s", file=sys.stderr)
        yield Result(name=name, setup=setup, measurement=measurement, wall_s=wall_s)


def write(results: list[Result], differences: list[Difference], parameters: int) -> None:
    """Store the first and the last step in bytes as JSON, and the table of bytes per parameter as Markdown."""
    stored = {
        "environment": environment(),
        "num_parameters": parameters,
        "results": [_stored(result) for result in results],
        "compared_with_reference": [asdict(difference) for difference in differences],
    }
    (RESULTS / "bytes_per_parameter.json").write_text(json.dumps(stored, indent=1) + "\n")
    table = markdown([(result.name, result.setup, result.measurement) for result in results], differences, parameters)
    (RESULTS / "bytes_per_parameter.md").write_text(table)


def _stored(result: Result) -> dict[str, Any]:
    last = result.setup.num_steps - 1
    return {
        "name": result.name,
        "setup": asdict(result.setup),
        "world_size": result.measurement.world_size,
        "wall_s": round(result.wall_s, 1),
        "device": {step: _phases(result.measurement.device(step=step)) for step in (0, last)},
        "host": {step: _phases(result.measurement.host(step=step)) for step in (0, last)},
    }


def _phases(profile: MemoryProfile) -> dict[str, dict[str, int]]:
    return {phase.phase.value: dict(phase.causes.items()) for phase in profile.phases if phase.total_bytes}


if __name__ == "__main__":
    sys.exit(main())
