"""Runs of scaling.train in this process that are stopped, rehearsed, or run out of memory."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from scaling.engines.ddp import DdpEngine
from scaling.train import main
from tests.scaling.decisions import plan_tiny
from tests.scaling.launching import start, succeed

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.usefixtures("one_process")]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return plan_tiny(tmp_path / "plan", "ddp", world_size=1, micro_batch_size=4)


def train(plan: Path, *flags: object, out: str = "run") -> tuple[int, Path]:
    folder = plan.parent.parent / out
    given = ["--plan", plan, "--out", folder, "--steps", 4, "--learning-rate", 1e-2, *flags]
    return main([str(flag) for flag in given]), folder


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def in_step(number: int, action: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something when the gradients of a step are there."""
    real, steps = DdpEngine._optimizer_step, [0]

    def step(engine: DdpEngine) -> torch.Tensor:
        steps[0] += 1
        if steps[0] == number:
            action()
        return real(engine)

    monkeypatch.setattr(DdpEngine, "_optimizer_step", step)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stopping_signal_saves_after_the_step_and_the_run_goes_on_as_if_never_stopped(
    number: signal.Signals, plan: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = train(plan, out="whole")
    with monkeypatch.context() as patched:
        in_step(2, lambda: os.kill(os.getpid(), number), patched)
        capfd.readouterr()
        code, stopped = train(plan)
    assert code == 0
    # The signal came after the ranks had agreed on step 2, so the third step is the last one.
    assert capfd.readouterr().out.splitlines()[0].startswith(f"stopped by {number.name} after step 3 of 4; saved in ")
    assert losses(stopped) == losses(whole)[:3]
    assert not (stopped / "final").exists()
    assert train(plan, "--resume", "auto")[0] == 0
    assert losses(stopped) == losses(whole)
    assert (stopped / "final").exists()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_dry_run_tells_every_phase_and_changes_nothing(
    strategy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_tiny(tmp_path / "plan", strategy, world_size=1)
    with caplog.at_level("INFO", logger="scaling"):
        _, rehearsed = train(plan, "--dry-run", "always", out="rehearsed")
    table = [record.message for record in caplog.records if record.name == "scaling.training_run"]
    assert phases_in(table) == PHASES
    _, plain = train(plan, out="plain")
    assert losses(rehearsed) == losses(plain)
    assert weights(rehearsed) == weights(plain)


@pytest.mark.deepspeed
def test_a_dry_run_changes_nothing_under_deepspeed(tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path / "plan", "zero2", world_size=1)
    head = [sys.executable, "-m", "scaling.train", "--plan", plan, "--steps", "4", "--learning-rate", "1e-2", "--out"]
    rehearsed, plain = tmp_path / "rehearsed", tmp_path / "plain"
    done = start([*head, rehearsed, "--dry-run", "always"])
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.removeprefix("INFO scaling.training_run: ") for line in done.stderr.splitlines()]
    assert phases_in(lines) == PHASES
    succeed([*head, plain])
    assert losses(rehearsed) == losses(plain)
    assert weights(rehearsed) == weights(plain)


PHASES = ["initialise", "forward", "backward", "optimizer", "evaluation", "save"]


def phases_in(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line.startswith("  ") and line.endswith(")")]


def weights(run: Path) -> bytes:
    return (run / "final" / "model.safetensors").read_bytes()


def test_memory_that_ends_in_the_update_ends_the_run_with_a_post_mortem(
    plan: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    in_step(2, no_memory, monkeypatch)
    code, run = train(plan)
    assert code == 2
    told = capfd.readouterr().err
    assert "error: rank 0 ran out of device memory in the optimizer step: the update may be half done" in told
    assert "the allocator says: CUDA out of memory. Tried to allocate 20.00 GiB." in told
    assert "predicted peak: " in told
    assert "measured peak: " in told
    assert "changes that need at most " in told
    assert "--micro-batch-size 2: needs " in told
    assert "Traceback" not in told
    assert not (run / "final").exists()


def test_memory_that_ends_in_a_pass_of_several_samples_does_not_end_the_run(
    plan: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = train(plan, out="whole")
    forward = DdpEngine._forward
    sizes: list[int] = []

    def full(engine: DdpEngine, **inputs: torch.Tensor) -> Any:
        sizes.append(len(inputs["input_ids"]))
        if sizes[-1] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(engine, **inputs)

    monkeypatch.setattr(DdpEngine, "_forward", full)
    with caplog.at_level("WARNING", logger="scaling"):
        code, run = train(plan)
    assert code == 0
    assert losses(run) == pytest.approx(losses(whole), rel=1e-5)
    told = [record.message for record in caplog.records if "ran out of device memory" in record.message]
    assert [("=2 instead of 4" in line, "=1 instead of 2" in line) for line in told] == [(True, False), (False, True)]
