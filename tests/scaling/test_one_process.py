"""Runs of scaling.train in this process: what the flags change."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import scaling.trainer
import scaling.training_run
from scaling.loop import EvaluationResult
from scaling.train import main
from scaling.watching.summary import Summary
from strategies.serialize import read_json
from tests.scaling.decisions import plan_tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.usefixtures("one_process")]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return plan_tiny(tmp_path / "plan", "ddp", world_size=1)


def train(plan: Path, *flags: object, out: str = "run") -> Path:
    folder = plan.parent.parent / out
    given = ["--plan", plan, "--out", folder, "--steps", 3, "--learning-rate", 1e-2, *flags]
    assert main([str(flag) for flag in given]) == 0
    return folder


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_same_seed_repeats_a_run_to_the_bit_and_another_does_not(plan: Path) -> None:
    first = losses(train(plan, "--seed", 1, out="first"))
    assert losses(train(plan, "--seed", 1, out="second")) == first
    assert losses(train(plan, "--seed", 2, out="third")) != first


def test_metering_does_not_change_the_run_and_can_be_left_out(plan: Path) -> None:
    metered, plain = train(plan, out="metered"), train(plan, "--measure-steps", 0, out="plain")
    assert losses(metered) == losses(plain)
    summary = read_json(Summary, plain / "summary.json")
    assert (summary.measured_peak_bytes, summary.measured, summary.metered_steps) == (None, None, 0)


def test_a_run_goes_on_from_the_weights_of_another(plan: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = train(plan, "--schedule", "constant", "--steps", 8, out="first")
    config = json.loads((first / "final" / "config.json").read_text())
    again = plan_tiny(first / "final", "ddp", world_size=1, config=config)
    second = first.parent / "second"
    flags = ["--plan", again, "--out", second, "--steps", 1, "--learning-rate", 1e-9, "--seed", 5]
    assert main([str(flag) for flag in flags]) == 0
    assert "pretrained weights from" in capfd.readouterr().out
    assert losses(second)[0] < losses(first)[0] - 0.5


def test_overwriting_moves_the_earlier_run_aside(plan: Path) -> None:
    folder = train(plan, "--seed", 1)
    before = (folder / "metrics.jsonl").read_text()
    train(plan, "--seed", 2, "--overwrite")
    assert (folder / "previous-1" / "metrics.jsonl").read_text() == before
    assert (folder / "previous-1" / "final" / "model.safetensors").exists()
    assert len(losses(folder)) == 3


def test_an_evaluation_that_is_no_number_ends_the_run(
    plan: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = EvaluationResult(mean_loss=float("nan"), num_loss_units=8, metrics={})
    monkeypatch.setattr(scaling.trainer, "evaluate", lambda engine, batches: result)
    flags = ["--plan", plan, "--out", plan.parent.parent / "run", "--steps", 3, "--eval-every", 1]
    assert main([str(flag) for flag in flags]) == 2
    assert "step 1: eval_loss=nan" in capfd.readouterr().err
    assert not (plan.parent.parent / "run" / "final").exists()


def test_an_evaluation_of_nothing_ends_the_run_and_is_no_loss_of_zero(
    plan: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = EvaluationResult(mean_loss=0.0, num_loss_units=0, metrics={})
    monkeypatch.setattr(scaling.trainer, "evaluate", lambda engine, batches: result)
    flags = ["--plan", plan, "--out", plan.parent.parent / "run", "--steps", 3, "--eval-every", 1]
    assert main([str(flag) for flag in flags]) == 2
    assert "step 1: nothing that is held out has a label; check the data" in capfd.readouterr().err


def test_a_full_disk_ends_a_run_with_one_line(
    plan: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling.training_run, "METRICS_FILE", "/dev/full")
    flags = ["--plan", plan, "--out", plan.parent.parent / "run", "--steps", 3]
    assert main([str(flag) for flag in flags]) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: cannot write /dev/full: No space left on device")


def test_ctrl_c_ends_a_run_with_one_line(
    plan: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scaling.trainer.evaluate

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(scaling.trainer, "evaluate", interrupted)
    out = plan.parent.parent / "run"
    flags = ["--plan", plan, "--out", out, "--steps", 3, "--eval-every", 2]
    with pytest.raises(SystemExit) as caught:
        main([str(flag) for flag in flags])
    assert caught.value.code == 130
    error = capfd.readouterr().err
    assert error.splitlines()[-1] == "interrupted after step 2 of 3; no model was saved"
    assert "Traceback" not in error
    assert len(losses(out)) == 2
    assert sorted(path.name for path in out.iterdir()) == ["metrics.jsonl", "train_config.json"]
