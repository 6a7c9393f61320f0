"""Steps whose loss or gradient is not finite, in whole runs of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaling.engines import loss_scale
from scaling.train import main
from strategies.job import Precision
from tests.scaling.decisions import plan_tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.usefixtures("one_process")]
STEPS = 8


def train(folder: Path, *flags: object, precision: Precision, exit_code: int = 0) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl."""
    plan = plan_tiny(folder / "plan", "ddp", world_size=1, precision=precision)
    given = ["--plan", plan, "--out", folder / "run", "--steps", STEPS, "--measure-steps", 0, *flags]
    assert main([str(flag) for flag in given]) == exit_code
    text = (folder / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text  # which JSON has no word for
    assert "Infinity" not in text
    return [json.loads(line) for line in text.splitlines()]


def test_an_overflow_lowers_the_scale_and_does_not_advance_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loss_scale, "INITIAL_SCALE", 2.0**20)
    steps = train(tmp_path, "--schedule", "linear", "--learning-rate", 1.0e-2, precision=Precision.FP16)
    skipped = [step["skipped"] for step in steps]
    assert 1 <= sum(skipped) < STEPS - 2
    num_updates, scale = 0, 2.0**20
    for step in steps:
        assert step["loss_scale"] == scale
        assert step["lr"] == pytest.approx(1e-2 * (1 - num_updates / STEPS), rel=1e-12)
        num_updates, scale = num_updates + (not step["skipped"]), scale / 2 if step["skipped"] else scale
    assert caplog.text.count("fp16 overflow: the update was skipped") == sum(skipped)


def test_steps_that_are_not_finite_can_be_skipped(tmp_path: Path) -> None:
    flags = ["--learning-rate", 1e30, "--schedule", "constant", "--nonfinite", "skip"]
    steps = train(tmp_path, *flags, precision=Precision.FP32)
    assert len(steps) == STEPS
    first = next(index for index, step in enumerate(steps) if step["skipped"])
    assert all(step["skipped"] for step in steps[first:])  # the weights, as large as 1e30, did not change any more
    assert steps[first]["grad_norm"] is None


def test_the_first_tensor_that_is_not_finite_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--learning-rate", 1e30, "--schedule", "constant", "--nonfinite", "name"]
    train(tmp_path, *flags, precision=Precision.FP32, exit_code=2)
    message = capsys.readouterr().err
    # Norms of llama turn weights of 1e30 into zeros on the way forward, and fail on the way back.
    assert "no model was saved; all outputs are finite, and the first tensor that is not is the gradient of " in message
    assert "model.layers.1." in message
