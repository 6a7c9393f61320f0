"""Runs that are killed and go on, through the trainer: samples, losses and weights as if nothing had happened."""

from __future__ import annotations

import json
import sys
from itertools import chain
from typing import Any

import pytest

from tests.scaling.launching import succeed

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("killed")
    succeed([sys.executable, "-m", "tests.scaling.checkpoint.killed_runs", folder])
    found: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return found


def test_every_start_after_a_kill_goes_well(told: dict[str, Any]) -> None:
    assert told["kills"] >= 4
    assert told["failed_starts"] == 0


def test_a_killed_run_ends_as_an_undisturbed_one(told: dict[str, Any]) -> None:
    assert told["finished_runs"] >= 1
    assert told["different_runs"] == 0


@pytest.mark.parametrize("run", ["undisturbed", "killed"])
def test_no_sample_comes_twice_in_an_epoch_and_none_is_left_out(told: dict[str, Any], run: str) -> None:
    # transformers #5605: optimizer steps were taken for micro batches. A step here is four micro batches of two.
    ids = list(chain.from_iterable(told["ids"][run]))
    num_samples = told["num_samples"]
    epochs = [ids[start : start + num_samples] for start in range(0, len(ids), num_samples)]
    assert len(epochs) >= 3
    for epoch in epochs[:-1]:
        assert sorted(epoch) == list(range(num_samples))


def test_epochs_have_different_orders_after_a_kill_too(told: dict[str, Any]) -> None:
    # accelerate #2333: after a resume the second epoch had the order of the first.
    ids = list(chain.from_iterable(told["ids"]["killed"]))
    num_samples = told["num_samples"]
    assert ids[:num_samples] != ids[num_samples : 2 * num_samples]
    assert told["ids"]["killed"] == told["ids"]["undisturbed"]


def test_run_files_hold_every_step_once(told: dict[str, Any]) -> None:
    steps = [number for number, loss, *_ in told["numbers"] if loss is not None]
    assert steps == list(range(1, len(steps) + 1))
