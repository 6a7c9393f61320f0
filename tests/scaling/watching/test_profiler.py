"""The window of torch's profiler where something is in its way."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from scaling.errors import ConfigError
from scaling.train_config import TrainConfig
from scaling.watching.profiler import ProfilerWindow
from scaling.watching.step_range import StepRange, parse_step_range


def test_a_trace_that_cannot_be_written_is_told_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "profile").write_text("a file is in its place")
    window = ProfilerWindow(StepRange(first=1, last=1), folder=tmp_path / "profile", rank=1)
    window.before_step(1)
    torch.ones(3).sum()
    window.after_step(1)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith(f"rank 1: the profiler's trace {tmp_path}/profile/rank-1.pt.trace.json.gz")


def test_a_run_that_goes_on_behind_the_window_says_so_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    window = ProfilerWindow(StepRange(first=2, last=3), folder=tmp_path / "profile", rank=0)
    for step in (7, 8):
        window.before_step(step)
        window.after_step(step)
    assert [record.getMessage() for record in caplog.records] == [
        "this run goes on at step 7, so profile_steps=2:3 profiles nothing"
    ]
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize("text", ["10", "10:9", "0:3", "a:b", "1:2:3", ""])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not FIRST:LAST; write for instance 10:13"):
        parse_step_range(text)


@pytest.mark.parametrize(
    ("text", "message"), [("13:10", "profile_steps='13:10' is not FIRST:LAST"), ("1:9", "ends after steps=8")]
)
def test_a_window_that_a_run_has_not_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(plan=Path("plan.json"), out=Path("run"), steps=8, profile_steps=text)
