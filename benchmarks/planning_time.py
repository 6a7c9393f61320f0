"""Whole-process time of ``scaling plan`` for three models and 8 to 1024 GPUs, and proof that torch is not imported.

Method: each case is a fresh Python process, timed from outside, five counted runs after one warm-up; the median is
quoted. Beside it, in the same run, the time of a Python process that imports torch alone. Usage:
``python -m benchmarks.planning_time [--runs 5]``; writes ``benchmarks/results/planning_time.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "planning_time.json"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
GPU_COUNTS = (8, 64, 256, 1024)
FRAMEWORKS = ("torch", "transformers", "deepspeed", "accelerate", "numpy")
CODE = """
import sys
from scaling.cli import main
try:
    main()
finally:
    print("imported:", [name for name in {frameworks} if name in sys.modules], file=sys.stderr)
"""


def main() -> None:
    """Time every case, print a table and store the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    torch_s = median_seconds([sys.executable, "-c", "import torch"], runs=runs)
    cases = [case(model, gpus, runs=runs) for model in MODELS for gpus in GPU_COUNTS]
    print(f"{'model':16} {'GPUs':>5} {'median s':>9} {'exit':>5}  frameworks imported")
    for row in cases:
        print(f"{row['model']:16} {row['gpus']:>5} {row['median_s']:>9.3f} {row['exit_code']:>5}  {row['imported']}")
    print(f"python -c 'import torch': {torch_s:.3f} s")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"runs": runs, "import_torch_median_s": torch_s, "cases": cases}, indent=2) + "\n")


def case(model: str, gpus: int, *, runs: int) -> dict[str, object]:
    """Return the median time of one plan, its exit code and which frameworks the process had imported."""
    flags = ["--gpus", str(gpus), "--gpu", "H100-80GB-SXM", "--seq-len", "4096", "--global-batch-size", str(4 * gpus)]
    command = [sys.executable, "-c", CODE.format(frameworks=FRAMEWORKS), "plan", model, *flags]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    imported = finished.stderr.rpartition("imported:")[2].strip()
    return {
        "model": model,
        "gpus": gpus,
        "median_s": median_seconds(command, runs=runs),
        "exit_code": finished.returncode,
        "imported": imported,
    }


def median_seconds(command: list[str], *, runs: int) -> float:
    """Return the median wall time of ``command`` over ``runs`` runs after one warm-up."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=False)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
