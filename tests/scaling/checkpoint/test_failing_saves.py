"""A disk that is full on one of two ranks: all ranks agree on what follows, which is what was configured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.resume_pieces import largest_difference
from tests.scaling.launching import succeed

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

FULL = "No space left on device"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failing")
    succeed([sys.executable, "-m", "tests.scaling.checkpoint.failing_saves", folder])
    return folder


@pytest.fixture
def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return found


def steps(names: list[str]) -> list[int]:
    """Return the steps of checkpoints; anything else in their folder is a mistake."""
    assert all(name.startswith("step-") for name in names), names
    return [int(name.removeprefix("step-")) for name in names]


def failures(metrics: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in metrics if FULL in line.get("save_error", "")]


@pytest.mark.parametrize(
    ("case", "saved", "failed"),
    [
        ("ddp", [1, 3, 4], [2]),
        ("ddp, async", [1, 3, 4], [2]),
        ("ddp, async, the last", [1, 2, 3], [4]),
        ("zero3", [], [1, 2, 3, 4]),
    ],
)
def test_a_run_goes_on_without_the_checkpoint_where_it_is_told_to(
    told: dict[str, Any], folder: Path, case: str, saved: list[int], failed: list[int]
) -> None:
    run = told[case]
    assert run["codes"] == [0, 0], run["said"]
    assert steps(run["checkpoints"]) == saved
    assert failures(run["metrics"]) == failed
    assert [line["step"] for line in run["metrics"] if "loss" in line] == [1, 2, 3, 4]
    assert run["said"].count("has no checkpoint: cannot write a checkpoint to") == len(failed)
    assert f"checkpoints that could not be written: {len(failed)}\n" in run["said"]
    assert "Traceback" not in run["said"]
    assert (folder / case / "final" / "model.safetensors").is_file()


def test_checkpoints_after_a_failed_one_hold_what_they_would_have(told: dict[str, Any], folder: Path) -> None:
    # The background one of step 2 fails while step 3 trains; both runs are the same otherwise.
    one, other = (folder / case / "checkpoints" / "step-00000004" for case in ("ddp", "ddp, async"))
    assert set(largest_difference(one, other).values()) == {0.0}


@pytest.mark.parametrize("case", ["ddp, stop", "ddp, async, stop"])
def test_a_run_ends_with_the_earlier_checkpoint_where_nothing_was_said(told: dict[str, Any], case: str) -> None:
    run = told[case]
    assert run["codes"] == [2, 2], run["said"]
    assert 1 in steps(run["checkpoints"])
    assert 2 not in steps(run["checkpoints"])
    assert failures(run["metrics"]) == [2]
    assert "error: cannot write a checkpoint to" in run["said"]
    assert "Traceback" not in run["said"]
