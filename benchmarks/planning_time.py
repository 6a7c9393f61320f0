"""Whole-process time of ``scaling plan``, beside a process that asks DeepSpeed's two estimators.

Method: each case is a fresh Python process, timed from outside, ten counted runs after one warm-up; the median is
quoted. Llama-3.1-8B, 70B and 405B on 8 to 16,384 GPUs, and in the same run, in turns with the largest case, a process
that imports DeepSpeed and calls ``estimate_zero2_model_states_mem_needs`` and ``estimate_zero3_model_states_mem_needs``
with the 405B model's parameters, the least that they can be asked. Ours tell which frameworks they had imported.
Compiled modules are kept in a folder of the run's own, as an installation keeps them: the warm-up writes it.

Usage: ``python -m benchmarks.planning_time [--runs 10]``; writes ``benchmarks/results/planning_time.json``.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from strategies.load_model import load_model_spec

RESULTS = Path(__file__).parent / "results" / "planning_time.json"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
GPU_COUNTS = (8, 64, 1024, 16384)
LARGEST = (MODELS[-1], GPU_COUNTS[-1])
FRAMEWORKS = ("torch", "transformers", "deepspeed", "accelerate", "numpy")
PLAN = """
import sys
from scaling.cli import main
try:
    main()
finally:
    print("imported:", [name for name in {frameworks} if name in sys.modules], file=sys.stderr)
"""
ESTIMATORS = """
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
print(estimate_zero2_model_states_mem_needs(
    {params}, num_gpus_per_node=8, num_nodes={nodes}, cpu_offload=False, additional_buffer_factor=1.5))
print(estimate_zero3_model_states_mem_needs(
    {params}, {largest}, num_gpus_per_node=8, num_nodes={nodes}, cpu_offload=False, cpu_offload_params=False,
    zero_init=True, additional_buffer_factor=1.5))
"""
SWEEP = """
import time
from strategies.cluster import Cluster, gpu_preset
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.search import FixedParts
from strategies.select import decide
spec = load_model_spec("{model}")
cluster = Cluster(gpu=gpu_preset("H100-80GB-SXM"), gpus={gpus}, gpus_per_node=8)
job = Job(seq_len=4096, global_batch_size=4 * {gpus})
start = time.perf_counter()
decide(spec, cluster=cluster, job=job, fixed=FixedParts(searches_loss=True))
print(time.perf_counter() - start)
"""
"""The search alone, in a process that has planned nothing before."""


def main() -> None:
    """Time every case, print a table and store the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    cases = [case(model, gpus, runs=runs) for model in MODELS for gpus in GPU_COUNTS if (model, gpus) != LARGEST]
    largest, estimators = side_by_side(runs=runs)
    cases.append(largest)
    print(f"{'model':16} {'GPUs':>6} {'median s':>9} {'exit':>5}  frameworks imported")
    for row in cases:
        print(f"{row['model']:16} {row['gpus']:>6} {row['median_s']:>9.3f} {row['exit_code']:>5}  {row['imported']}")
    ratio = largest["median_s"] / estimators["median_s"]
    sweep = [sweep_seconds() for _ in range(runs)]
    print(f"the search alone for the largest case: {statistics.median(sweep):.3f} s")
    print(f"DeepSpeed's two estimators: {estimators['median_s']:.3f} s; the largest case over that: 1/{1 / ratio:.1f}")
    document = {
        "environment": environment(),
        "runs": runs,
        "cases": cases,
        "sweep": timed(sweep),
        "deepspeed_estimators": estimators,
        "largest_over_estimators": ratio,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


def case(model: str, gpus: int, *, runs: int) -> dict[str, Any]:
    """Return the times of one plan, its exit code and which frameworks the process had imported."""
    command = plan_command(model, gpus)
    return {"model": model, "gpus": gpus, **told(command), **timed([seconds(command) for _ in range(runs)])}


def side_by_side(*, runs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the largest case and DeepSpeed's estimators, run in turns so that both meet the same machine."""
    spec = load_model_spec(LARGEST[0])
    code = ESTIMATORS.format(params=spec.num_params, largest=spec.vocab_size * spec.hidden_size, nodes=LARGEST[1] // 8)
    ours, theirs = plan_command(*LARGEST), [sys.executable, "-c", code]
    found, warmed = told(ours), subprocess.run(theirs, capture_output=True, text=True, check=True, env=_environment())
    turns = [(seconds(ours), seconds(theirs)) for _ in range(runs)]
    return (
        {"model": LARGEST[0], "gpus": LARGEST[1], **found, **timed([each for each, _ in turns])},
        {"answer": warmed.stdout.split("\n")[-3:-1], **timed([each for _, each in turns])},
    )


def sweep_seconds() -> float:
    """Return the wall time of the search for the largest case, imports left out."""
    code = SWEEP.format(model=LARGEST[0], gpus=LARGEST[1])
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=_environment()).stdout)


def plan_command(model: str, gpus: int) -> list[str]:
    flags = ["--gpus", str(gpus), "--gpu", "H100-80GB-SXM", "--seq-len", "4096", "--global-batch-size", str(4 * gpus)]
    return [sys.executable, "-c", PLAN.format(frameworks=FRAMEWORKS), "plan", model, *flags]


@cache
def _environment() -> dict[str, str]:
    """Return the environment of every process: as it is, with compiled modules kept even where that is switched off."""
    folder = tempfile.mkdtemp(prefix="planning-time-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": folder}


def told(command: list[str]) -> dict[str, Any]:
    """Return the exit code of a first run, which warms the disk's cache, and the frameworks imported in it."""
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    imported = finished.stderr.rpartition("imported:")[2].strip()
    return {"exit_code": finished.returncode, "imported": imported}


def seconds(command: list[str]) -> float:
    """Return the wall time of ``command``."""
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=False, env=_environment())
    return time.perf_counter() - start


def timed(times: list[float]) -> dict[str, float]:
    return {"median_s": statistics.median(times), "min_s": min(times), "max_s": max(times)}


if __name__ == "__main__":
    main()
