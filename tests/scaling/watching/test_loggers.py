"""Loggers write what they are given, keep secrets here, and fail with one warning."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from scaling.errors import ConfigError
from scaling.train_config import LoggerName, TrainConfig
from scaling.watching import loggers
from scaling.watching.loggers import GuardedLogger, Logger, check_loggers, named_values, open_loggers, shown_settings
from scaling.watching.records import LayerGradient, LayerRecord
from tests.scaling.full_disk import file_size_limit
from tests.scaling.watching.made_up import evaluation, step

SECRET = "0123456789abcdef0123456789abcdef01234567"
"""As long as a key of W&B; it would take one for a key."""


def config_for(folder: Path, *names: LoggerName, data: str = "builtin:python") -> TrainConfig:
    return TrainConfig(plan=folder / "plan.json", out=folder / "run", steps=3, loggers=names, data=data)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    [tensorboard] = open_loggers(config_for(tmp_path, LoggerName.TENSORBOARD))
    for number in (1, 2, 3):
        tensorboard.log(step(number, seconds=2.0))
    tensorboard.log(evaluation(3))
    tensorboard.log(LayerRecord(step=3, layers={"model.layers.0": LayerGradient(grad_norm=0.5, grad_max=0.25)}))
    tensorboard.close(failed=False)
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == [(1, 4.0), (2, 3.0), (3, 2.0)]
    assert [(event.step, event.value) for event in read.Scalars("eval/loss")] == [(3, 2.5)]
    assert [event.value for event in read.Scalars("layers/model.layers.0/grad_max")] == [0.25]


def test_what_is_unknown_is_not_drawn() -> None:
    values = named_values(step(1, seconds=2.0, peak=None))
    assert "train/peak_allocated_bytes" not in values
    assert "train/step" not in values
    assert values["train/skipped"] == 0.0


@pytest.mark.slow
def test_wandb_keeps_a_run_here_without_secrets(tmp_path: Path) -> None:
    """In a process of its own: its service lives as long as the process."""
    program = (
        "import sys; from pathlib import Path; from tests.scaling.watching.test_loggers import log_to_wandb; "
        "log_to_wandb(Path(sys.argv[1]))"
    )
    secrets = {"HF_TOKEN": f"hf_{SECRET}", "WANDB_API_KEY": SECRET, "WANDB_MODE": "offline"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, **secrets},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [kept] = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    assert b"train/loss" in content
    assert b"global-batch-of-this-test" in content
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in done.stdout + done.stderr


def log_to_wandb(folder: Path) -> None:
    """Runs in the process that the test above starts."""
    address = f"https://somebody:{SECRET}@host/global-batch-of-this-test.jsonl?token={SECRET}"
    logging.basicConfig(level=logging.INFO)
    [wandb] = open_loggers(config_for(folder, LoggerName.WANDB, data=address))
    wandb.log(step(1, seconds=2.0))
    wandb.log(evaluation(1))
    wandb.close(failed=False)


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    config = config_for(tmp_path, data=f"https://me:{SECRET}@host/x.jsonl?access_token={SECRET}&page=2")
    shown = shown_settings(config)
    assert shown["data"] == "https://[hidden]@host/x.jsonl?access_token=[hidden]&page=2"
    assert shown["steps"] == 3


def test_a_full_disk_ends_a_logger_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    [tensorboard] = open_loggers(config_for(tmp_path, LoggerName.TENSORBOARD))
    with file_size_limit(100):
        for number in range(3):
            tensorboard.log(step(number, seconds=2.0))
        tensorboard.close(failed=False)
    assert len(warnings(caplog)) == 1
    assert "tensorboard logs nothing from now on (" in warnings(caplog)[0]
    assert "File too large" in warnings(caplog)[0]


class Broken:
    """Fails with a key in its message, as a server's answer may."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        raise ConnectionError(f"no answer from https://api:{SECRET}@host")

    def close(self, *, failed: bool) -> None:
        raise AssertionError("it has been given up")


def test_a_failing_logger_is_given_up_and_tells_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def opener(_: TrainConfig) -> Logger:
        return Broken()

    guarded = GuardedLogger("broken", opener, config_for(tmp_path))
    guarded.log(step(1, seconds=1.0))
    guarded.log(step(2, seconds=1.0))
    guarded.close(failed=False)
    assert warnings(caplog) == [
        "broken logs nothing from now on (no answer from https://[hidden]@host); training goes on, and metrics.jsonl "
        "has everything"
    ]


def test_a_logger_that_cannot_be_opened_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("a file is in its place")
    [tensorboard] = open_loggers(config_for(tmp_path, LoggerName.TENSORBOARD))
    tensorboard.log(step(1, seconds=1.0))
    tensorboard.close(failed=False)
    assert len(warnings(caplog)) == 1


def test_a_logger_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None if name == "wandb" else object())
    check_loggers([LoggerName.TENSORBOARD])
    with pytest.raises(
        ConfigError, match=r"loggers=wandb: not installed here; pip install 'memory-scaling\[loggers\]'"
    ):
        check_loggers([LoggerName.TENSORBOARD, LoggerName.WANDB])
