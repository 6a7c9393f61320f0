"""The flags of saving and going on, through the trainer in this process."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scaling.checkpoint.checkpoints
import scaling.saving
from benchmarks.resume_pieces import largest_difference
from scaling.checkpoint.errors import CheckpointError, SaveFailed
from scaling.checkpoint.snapshot import Snapshot
from scaling.interrupt import RunStatus
from scaling.saving import Saving, check_savable
from scaling.train import main
from scaling.train_config import OnSaveFailure, TrainConfig
from scaling.watching.earlier import keep_until
from scaling.watching.records import SaveFailureRecord
from strategies.job import OptimizerName
from strategies.plan import StrategyName
from tests.scaling.decisions import plan_tiny, toy_decision

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.usefixtures("one_process")]

STEPS = 4


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return plan_tiny(tmp_path / "plan", "ddp", world_size=1)


def train(plan: Path, out: str, *flags: object, steps: int = STEPS, save_every: int = 2) -> int:
    given = {"plan": plan, "out": plan.parent.parent / out, "steps": steps, "save-every": save_every}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    # A constant rate: with another number of steps the first ones are the same.
    return main([str(word) for word in [*words, "--measure-steps", 0, "--schedule", "constant", *flags]])


def checkpoint(plan: Path, out: str, step: int) -> Path:
    return plan.parent.parent / out / "checkpoints" / f"step-{step:08d}"


def steps_in(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_more_steps_of_a_finished_run_are_those_of_a_longer_one(plan: Path, tmp_path: Path) -> None:
    assert train(plan, "long") == 0
    assert train(plan, "short", steps=2) == 0
    assert train(plan, "short", "--resume", "auto") == 0
    assert set(largest_difference(checkpoint(plan, "long", 4), checkpoint(plan, "short", 4)).values()) == {0.0}
    assert steps_in(tmp_path / "short") == [1, 2, 3, 4]
    assert json.loads((tmp_path / "short" / "summary.json").read_text())["steps"] == 4
    assert (tmp_path / "short" / "previous-1" / "final" / "config.json").is_file()
    # Into a folder of its own, from the other's checkpoint; and in the background.
    assert train(plan, "branch", "--resume", checkpoint(plan, "long", 2), "--save-async") == 0
    assert set(largest_difference(checkpoint(plan, "long", 4), checkpoint(plan, "branch", 4)).values()) == {0.0}
    assert steps_in(tmp_path / "branch") == [3, 4]


def test_auto_starts_anew_where_nothing_was_saved(plan: Path, tmp_path: Path) -> None:
    assert train(plan, "run", save_every=0) == 0
    assert train(plan, "run", save_every=0) == 2  # without a word about the run that is there
    assert train(plan, "run", "--resume", "auto", save_every=0) == 0
    assert steps_in(tmp_path / "run") == [1, 2, 3, 4]
    assert steps_in(tmp_path / "run" / "previous-1") == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--resume", "nowhere"], "nowhere is no complete checkpoint: it has no manifest.json"),
        (["--resume", "auto", "--seed", "5"], "is of another run: seed=5 (checkpoint: 0)"),
        (["--resume", "auto", "--steps", "3"], "has done step 4, which is beyond steps=3; give more --steps"),
        (["--save-every", "-1"], "save_every=-1 must not be negative"),
    ],
    ids=["no checkpoint", "another seed", "fewer steps", "a negative number"],
)
def test_what_cannot_be_gone_on_from_is_one_line(
    plan: Path, capfd: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert train(plan, "run") == 0
    capfd.readouterr()
    assert train(plan, "run", *flags) == 2
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_checkpoint_of_the_last_step_has_nothing_left(plan: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(plan, "run") == 0
    assert train(plan, "other", "--resume", checkpoint(plan, "run", STEPS)) == 2
    assert "has done step 4 of steps=4; give more --steps" in capfd.readouterr().err


def test_a_run_that_is_over_and_whose_metrics_are_gone_is_told_what_to_do(
    plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(plan, "run") == 0
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert train(plan, "run", "--resume", "auto") == 2
    said = capfd.readouterr().err
    assert (
        "metrics.jsonl tells of none of them any more; give more --steps, or take the model out with scaling " in said
    )
    assert "Traceback" not in said


def test_space_for_a_checkpoint_is_asked_for_before_the_first_step(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(scaling.saving.shutil, "disk_usage", lambda _: real._replace(free=1000))
    assert train(plan, "run") == 2
    said = capfd.readouterr().err
    # Three times 4 bytes a parameter (Rajbhandari et al. 2020, section 3.1, fp32), of a model of 37,024.
    assert "a checkpoint needs 433.88 KiB, but" in said
    assert "has 1000 B free; free space, give another --out" in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_save_that_fails_steps_later_does_not_turn_the_run_back(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    real = scaling.checkpoint.checkpoints.write

    def full_at_first(snapshot: Snapshot, *rest: Any) -> Path:
        if snapshot.manifest.state.step == 2:
            raise SaveFailed("no space")
        return real(snapshot, *rest)

    monkeypatch.setattr(scaling.checkpoint.checkpoints, "write", full_at_first)
    monkeypatch.setattr(RunStatus, "reached", property(lambda _: told[-1], lambda _, text: told.append(text)))
    assert train(plan, "run", "--save-async", "--on-save-failure", "continue") == 0
    assert steps_in(plan.parent.parent / "run") == [1, 2, 3, 4, 2]
    steps = [int(text.split()[2]) for text in told if text.startswith("after step ")]
    assert steps == [1, 2, 3, 4, 4]


def failed_saving(*, failed_step: int, begun_step: int) -> Saving:
    """Return the saving of a run that is to continue, after one of its saves has failed."""
    saving = object.__new__(Saving)
    error = SaveFailed("no space")
    saving._config = SimpleNamespace(on_save_failure=OnSaveFailure.CONTINUE)  # type: ignore[assignment]
    saving._failures = [(SaveFailureRecord(step=failed_step, save_error=str(error)), error)]
    saving._begun_step = begun_step
    return saving


def test_a_run_that_is_to_stop_does_not_say_that_it_has_saved_where_it_has_not() -> None:
    told = failed_saving(failed_step=4, begun_step=4).failures(may_continue=False)
    assert next(told).step == 4
    with pytest.raises(SaveFailed, match="no space"):
        next(told)
    # An earlier one in the background had failed; that of the last step is whole.
    assert [each.step for each in failed_saving(failed_step=2, begun_step=4).failures(may_continue=False)] == [2]


def test_a_failed_save_is_told_where_the_run_ends_by_something_else(caplog: pytest.LogCaptureFixture) -> None:
    saving = failed_saving(failed_step=4, begun_step=4)
    saving._config = SimpleNamespace(on_save_failure=OnSaveFailure.STOP)  # type: ignore[assignment]
    saving._checkpoints = SimpleNamespace(finish=lambda: None, latest=None)  # type: ignore[assignment]
    saving.close()
    assert "step 4 has no checkpoint: no space" in caplog.text


def test_metrics_of_steps_that_are_done_again_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 2, "eval_loss": 1}\n{"step": 3}\n{"st')
    keep_until(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 2, "eval_loss": 1}\n'
    assert keep_until(tmp_path / "absent", 2) == []


def test_8_bit_states_that_cannot_be_saved_are_refused_before_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decision = toy_decision("zero3", world_size=1, accumulation=1)
    in_8_bits = replace(decision, job=replace(decision.job, optimizer=OptimizerName.ADAMW_8BIT))
    config = TrainConfig(plan=tmp_path, out=tmp_path, steps=2, save_every=1)
    with pytest.raises(CheckpointError, match="save_every=1, but the states of optimizer=adamw-8bit cannot be saved"):
        check_savable(config, in_8_bits)
    check_savable(replace(config, save_every=0), in_8_bits)
    assert "optimizer=adamw-8bit cannot be saved under zero3: a signal ends this run for good" in caplog.text
    check_savable(config, decision)
    check_savable(config, replace(in_8_bits, plan=replace(decision.plan, strategy=StrategyName.DDP)))
