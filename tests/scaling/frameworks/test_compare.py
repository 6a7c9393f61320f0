"""What is refused before anything runs; tests/scaling/tensorflow/test_train.py runs both frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scaling.decisions import plan_tiny
from tests.scaling.launching import run_cli


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--steps", "3"], "steps=3 must be more than the 3 that warm up; give at least 8"),
        (["--set", "learning-rat=1"], "unknown setting 'learning_rat'; did you mean learning_rate?"),
        (["--set", "warmup_steps=9"], "warmup_steps=9 is more than steps=8"),
        (["--out", "{here}/plan"], "is not an empty folder; give another"),
        (["--out", "{here}/plan/plan.json"], "is not an empty folder; give another"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    plan = plan_tiny(tmp_path / "plan", "mirrored", world_size=2)
    words = ["compare-frameworks", "--plan", str(plan), "--steps", "8", "--out", str(tmp_path / "both")]
    assert run_cli(monkeypatch, [*words, *(word.format(here=tmp_path) for word in more)]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "both").exists()
