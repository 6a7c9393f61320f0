"""The entry point as a user starts it, with a real kill, and both frameworks side by side."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from safetensors.numpy import load_file
from typer.testing import CliRunner

from scaling.cli import app
from scaling.engines.loss_scale import Outcome
from scaling.tensorflow.mirrored import LossSums, MirroredEngine, MirroredStep
from scaling.tensorflow.train import main
from strategies.learning.run_store import read_runs, required_path
from tests.scaling.decisions import plan_tiny
from tests.scaling.launching import REPOSITORY, run_cli

pytestmark = pytest.mark.tensorflow


def flags(tmp_path: Path, *, out: str, steps: int) -> list[str]:
    plan = tmp_path / "plan" / "plan.json"
    if not plan.exists():
        plan_tiny(plan.parent, "mirrored", world_size=2)
    settings = {"learning-rate": "1e-2", "save-every": "2", "eval-every": "4", "eval-batches": "1"}
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    # No dropout in this model: what the two runs have in common is everything.
    return ["--plan", str(plan), "--out", str(tmp_path / out), "--steps", str(steps), *words]


def lines(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(flags(tmp_path, out="whole", steps=8)) == 0
    assert "8 steps, loss" in capfd.readouterr().out

    command = [sys.executable, "-m", "scaling.tensorflow.train", *flags(tmp_path, out="killed", steps=8)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    killed = tmp_path / "killed"
    deadline = time.monotonic() + 120
    while not (killed / "checkpoints" / "ckpt-2.index").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "final").exists()

    assert main([*flags(tmp_path, out="killed", steps=8), "--resume", "auto"]) == 0
    whole, resumed = (load_file(tmp_path / out / "final" / "model.safetensors") for out in ("whole", "killed"))
    assert whole.keys() == resumed.keys()
    assert all((whole[name].view("uint32") == resumed[name].view("uint32")).all() for name in whole)
    told = [
        [(line["step"], line.get("loss"), line.get("eval_loss"), line.get("grad_norm")) for line in lines(out)]
        for out in (tmp_path / "whole", killed)
    ]
    assert told[0] == told[1]
    assert len(told[0]) == 8 + 2

    by_whole, by_resumed = read_runs(required_path())
    assert (by_whole.resumed, by_resumed.resumed) == (False, True)
    assert by_whole.measured_allocated_bytes == lines(tmp_path / "whole")[-2]["peak_allocated_bytes"]
    assert by_whole.measured_step_s is not None

    last = str(killed / "checkpoints" / "ckpt-8")
    assert main([*flags(tmp_path, out="elsewhere", steps=8), "--resume", last]) == 2
    assert f"{last} has done step 8 of steps=8; give more --steps" in capfd.readouterr().err


def test_a_signal_ends_a_run_with_a_checkpoint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "stopped"

    def ask_to_stop() -> None:
        while len(lines(out)) < 3:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask_to_stop, daemon=True)
    asking.start()
    words = ["--save-every", "0", "--eval-every", "0", "--seed", str(2**63 - 1)]
    assert main([*flags(tmp_path, out="stopped", steps=5000), *words]) == 0
    asking.join()
    told = capfd.readouterr().out
    step = lines(out)[-1]["step"]
    assert 3 <= step < 5000
    assert told.startswith(f"stopped by SIGTERM after step {step} of 5000; saved in {out}/checkpoints/ckpt-{step}\n")
    assert (out / "checkpoints" / f"ckpt-{step}.index").exists()
    assert not (out / "final").exists()


@pytest.mark.slow
@pytest.mark.distributed
def test_both_frameworks_take_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = plan_tiny(tmp_path / "plan", "mirrored", world_size=2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(REPOSITORY)
    out = tmp_path / "both"
    words = [
        "compare-frameworks",
        "--plan",
        str(plan),
        "--out",
        str(out),
        "--steps",
        "6",
        "--set",
        "learning_rate=1e-2",
        "--set",
        "warmup_steps=3",
    ]
    assert run_cli(monkeypatch, words) == 0
    result = json.loads((out / "comparison.json").read_text())
    # The bound of the comparison with PyTorch: fp32 sums in another order.
    assert result["largest_loss_difference"] < 1e-4
    torch_run, tensorflow_run = result["runs"]
    assert (torch_run["num_processes"], tensorflow_run["num_processes"]) == (2, 1)
    for run in result["runs"]:
        assert len(run["losses"]) == 6
        assert run["losses"][-1] < run["losses"][0]
        assert 0 < run["start_up_s"] < run["whole_s"]
        assert run["peak_resident_bytes"] > run["predicted_peak_bytes"] > 0
        assert run["peak_device_bytes"] == pytest.approx(run["predicted_peak_bytes"], rel=0.5)
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "Largest difference in loss of a step" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--nonfinite", "name"], "nonfinite=name cannot be had in TensorFlow"),
        (["--streaming", "--save-async"], "streaming=True, save_async=True cannot be had in TensorFlow"),
        (["--timeout-s", "60"], "timeout_s=60 cannot be had in TensorFlow"),
        (["--resume", "nowhere/ckpt-1"], "nowhere/ckpt-1 is no checkpoint of TensorFlow"),
    ],
)
def test_what_it_cannot_do_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main([*flags(tmp_path, out="run", steps=4), *more]) == 2
    assert message in capfd.readouterr().err


def raise_out_of_memory(*_: object, **__: object) -> None:
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[8,64]")


def make_infinite_step(*_: object, **__: object) -> MirroredStep:
    return MirroredStep(mean_loss=math.inf, grad_norm=math.inf, outcome=Outcome.NOT_FINITE, num_loss_units=8, scale=1.0)


def find_no_label(*_: object, **__: object) -> LossSums:
    return LossSums(loss_sum=0.0, num_loss_units=0)


@pytest.mark.parametrize(
    ("method", "replacement", "message"),
    [
        ("train_step", raise_out_of_memory, "out of memory before the first step; nothing was saved: OOM when alloc"),
        ("train_step", make_infinite_step, "lengthen the warm-up, or skip such steps with --nonfinite skip"),
        ("evaluate", find_no_label, "step 1: nothing that is held out has a label"),
    ],
)
def test_a_run_that_cannot_go_on_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    method: str,
    replacement: Callable[..., Any],
    message: str,
) -> None:
    monkeypatch.setattr(MirroredEngine, method, replacement)
    assert main([*flags(tmp_path, out="run", steps=4), "--eval-every", "1"]) == 2
    told = capfd.readouterr().err
    assert message in told
    assert "Traceback" not in told


def test_a_plan_that_was_edited_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = flags(tmp_path, out="run", steps=4)
    plan = tmp_path / "plan" / "plan.json"
    content = json.loads(plan.read_text())
    content["plan"]["gradient_accumulation_steps"] = 1
    plan.write_text(json.dumps(content))
    assert main(words) == 2
    assert "gradient_accumulation_steps=1 in the plan, but global_batch_size=8 / (" in capfd.readouterr().err


def test_a_plan_for_gpus_is_not_trained_on_a_cpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama-demo", "--framework", "tensorflow", "--gpus", "2", "--gpu", "A100-80GB-SXM"]
    planned = [*words, "--seq-len", "64", "--global-batch-size", "4", "--out", str(tmp_path / "plan")]
    assert CliRunner().invoke(app, planned).exit_code == 0
    assert main(flags(tmp_path, out="run", steps=4)) == 2
    assert "is for 2 x gpu=A100-80GB-SXM, but TensorFlow sees 0 GPUs here" in capfd.readouterr().err


def test_a_plan_of_pytorch_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = plan_tiny(tmp_path / "torch", "ddp", world_size=2)
    assert main(["--plan", str(plan), "--out", str(tmp_path / "run"), "--steps", "4"]) == 2
    assert "the plan's strategy is ddp, which is pytorch's" in capfd.readouterr().err
