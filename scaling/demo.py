"""The whole path on this machine: plan a small model under a budget, train it with two launchers, open the result.

Runs the same commands that a user types; every figure printed at the end is read from the files they wrote.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from scaling.ports import free_port
from strategies.units import format_bytes

FOLDER = Path("demo")
PLAN = FOLDER / "plan"
BUDGET_GIB = 0.0625
"""Memory of one rank. Plain DDP needs more, with and without activation checkpointing."""
SHAPE = ["--seq-len", "128", "--global-batch-size", "8", "--precision", "bf16"]
HARDWARE = ["--gpu", "cpu", "--gpus", "2", "--gpu-memory-gib", str(BUDGET_GIB)]
TRAINING = ["--data", "builtin:python", "--tokenizer", "bytes", "--steps", "80", "--learning-rate", "3e-3"]
SCHEDULE = ["--warmup-steps", "8", "--schedule", "cosine", "--eval-every", "40", "--eval-batches", "2", "--seed", "1"]
LOSS_TARGET = 0.6
"""The last loss must be below this share of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one launcher's run left behind."""

    launcher: str
    first_loss: float
    last_loss: float
    predicted_bytes: int
    measured_bytes: int
    seconds: float

    @property
    def loss_ratio(self) -> float:
        return self.last_loss / self.first_loss

    def line(self) -> str:
        """Return the run as one line: loss, predicted and measured peak, time."""
        loss = f"loss {self.first_loss:.3f} -> {self.last_loss:.3f} ({self.loss_ratio:.0%} of its start)"
        predicted, measured = format_bytes(self.predicted_bytes), format_bytes(self.measured_bytes)
        share = f"{self.measured_bytes / self.predicted_bytes:.1%}"
        peak = f"peak per rank predicted {predicted}, measured {measured} ({share})"
        return f"{self.launcher}: {loss}; {peak}; {self.seconds:.0f} s"


def main() -> int:
    """Plan, train twice, check; return 0 when the loss fell and both results open."""
    start = time.perf_counter()
    shutil.rmtree(FOLDER, ignore_errors=True)
    _step("Plan a small llama for two CPU ranks in a budget that plain DDP exceeds")
    _run(["scaling", "plan", "llama-demo", *HARDWARE, *SHAPE, "--out", str(PLAN)])
    runs = [_train(launcher, head) for launcher, head in _launchers().items()]
    _step("Open both results with from_pretrained")
    for run in runs:
        _open(FOLDER / run.launcher / "final")
    _step("Predicted beside measured")
    for run in runs:
        print(run.line())
    print(f"Demo finished in {time.perf_counter() - start:.0f} s; everything is in {FOLDER}/")
    return 0 if all(run.loss_ratio < LOSS_TARGET for run in runs) else 1


def _launchers() -> dict[str, list[str]]:
    return {
        "accelerate": ["accelerate", "launch", "--config_file", str(PLAN / "accelerate.yaml"), "-m"],
        "deepspeed": [
            "deepspeed",
            "--num_gpus",
            "2",
            "--master_port",
            str(free_port()),  # of its own accord it takes 29500, whether or not that is in use
            "--log_level",
            "warning",
            "--module",
        ],
    }


def _train(launcher: str, head: list[str]) -> Run:
    _step(f"Train with {launcher}")
    out = FOLDER / launcher
    start = time.perf_counter()
    plan = ["--plan", str(PLAN / "plan.json")]
    _run([*head, "scaling.train", *plan, *TRAINING, *SCHEDULE, "--out", str(out)])
    losses = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    summary = json.loads((out / "summary.json").read_text())
    return Run(
        launcher=launcher,
        first_loss=losses[0],
        last_loss=losses[-1],
        predicted_bytes=summary["predicted_peak_bytes"],
        measured_bytes=summary["measured_peak_bytes"],
        seconds=time.perf_counter() - start,
    )


def _open(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("def main(", return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        ids = model.generate(**prompt, max_new_tokens=40, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    text = tokenizer.decode(ids[0])
    print(f"{folder}: {model.num_parameters():,} parameters; after so few steps it writes {text!r}")


def _step(title: str) -> None:
    print(f"\n== {title}", flush=True)


def _run(command: list[str]) -> None:
    """Show a command as a user would type it, run it, and end the demo with its exit code where it fails."""
    print(f"$ {shlex.join(command)}", flush=True)
    folder = Path(sys.executable).parent
    # The last two only keep launchers from announcing that they found no GPU and chose one thread a rank.
    quiet = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    environment = os.environ | quiet | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    finished = subprocess.run(command, env=environment, check=False)
    if finished.returncode:
        print(f"demo: {command[0]} ended with exit code {finished.returncode}", file=sys.stderr)
        sys.exit(finished.returncode)


if __name__ == "__main__":
    sys.exit(main())
