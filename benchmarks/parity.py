"""Do all strategies train the same model? The same fp32 steps under each, on 2 ranks and on 1, against plain PyTorch.

Method: llama-demo from one seed on Python's standard library, 20 optimizer steps of AdamW with cosine schedule,
warm-up, clipping and samples with unequal numbers of labels; 2 ranks, then 1 rank with doubled accumulation; every
strategy with the buckets that the planner gives it. Beside them one process of plain PyTorch (`plain_loop`) that takes
the whole global batch at once. Deterministic, so it is run once. Usage: ``python -m benchmarks.parity``; writes
``benchmarks/results/parity.json``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.environment import environment
from benchmarks.parity_worker import Setting, reference
from benchmarks.plain_loop import Trajectory
from strategies.serialize import to_json

RESULTS = Path(__file__).parent / "results" / "parity.json"
SETTING = Setting(model="llama-demo", seq_len=64, global_batch_size=8, micro_batch_size=2, num_steps=20)
LOSS_LIMIT = 1e-5
"""Relative; issue 2 asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy on one number of ranks, with its largest differences from plain PyTorch."""

    strategy: str
    num_ranks: int
    accumulation: int
    first_loss: float
    last_loss: float
    loss_difference: float
    """Relative, largest of all steps."""
    norm_difference: float
    """Relative, largest of all steps."""
    parameter_difference: float
    """Absolute, largest of all parameters after the last step."""


def main() -> int:
    """Measure, print the table, store the result; return 1 if a loss differs by more than the limit."""
    start = time.perf_counter()
    rows = measure(SETTING)
    print(
        f"{'strategy':9} {'ranks':>5} {'accum.':>6} {'loss 1':>9} {'loss ' + str(SETTING.num_steps):>9} "
        f"{'d loss (rel)':>13} {'d norm (rel)':>13} {'d param (abs)':>14}"
    )
    for row in rows:
        print(
            f"{row.strategy:9} {row.num_ranks:>5} {row.accumulation:>6} {row.first_loss:>9.5f} {row.last_loss:>9.5f} "
            f"{row.loss_difference:>13.1e} {row.norm_difference:>13.1e} {row.parameter_difference:>14.1e}"
        )
    worst = max(row.loss_difference for row in rows)
    print(
        f"largest relative difference in loss {worst:.1e}, limit {LOSS_LIMIT:.0e}; {time.perf_counter() - start:.0f} s"
    )
    result = {
        "setting": dataclasses.asdict(SETTING),
        "loss_limit": LOSS_LIMIT,
        "rows": [dataclasses.asdict(row) for row in rows],
        "environment": environment(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    return int(worst > LOSS_LIMIT)


def measure(setting: Setting) -> list[Row]:
    """Return a row for every strategy on two ranks and on one."""
    plain = reference(setting)
    return [
        _row(name, trajectory, plain, setting=setting, num_ranks=num_ranks)
        for num_ranks in (2, 1)
        for name, trajectory in trajectories(setting, num_ranks=num_ranks).items()
    ]


def trajectories(setting: Setting, *, num_ranks: int) -> dict[str, Trajectory]:
    """Return the trajectory of every strategy, run by processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        setting_path, out = Path(folder) / "setting.json", Path(folder) / "out.pt"
        setting_path.write_text(to_json(setting))
        torchrun = str(Path(sys.executable).parent / "torchrun")
        head = [torchrun, "--standalone", "--nproc_per_node", str(num_ranks)]
        command = [*head, "-m", "benchmarks.parity_worker", str(setting_path), str(out)]
        finished = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        if finished.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {finished.returncode}:\n{finished.stderr[-4000:]}")
        stored = torch.load(out)
    return {
        name: Trajectory(losses=losses, norms=norms, parameters=parameters)
        for name, (losses, norms, parameters) in stored.items()
    }


def _row(name: str, trajectory: Trajectory, plain: Trajectory, *, setting: Setting, num_ranks: int) -> Row:
    return Row(
        strategy=name,
        num_ranks=num_ranks,
        accumulation=setting.global_batch_size // (setting.micro_batch_size * num_ranks),
        first_loss=trajectory.losses[0],
        last_loss=trajectory.losses[-1],
        loss_difference=largest_relative_difference(trajectory.losses, plain.losses),
        norm_difference=largest_relative_difference(trajectory.norms, plain.norms),
        parameter_difference=float((trajectory.parameters - plain.parameters).abs().max()),
    )


def largest_relative_difference(values: list[float], expected: list[float]) -> float:
    """Return the largest |value - expected| / |expected| over both lists."""
    return max(abs(value - right) / abs(right) for value, right in zip(values, expected, strict=True))


if __name__ == "__main__":
    sys.exit(main())
