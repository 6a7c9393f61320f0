"""Saves that do not hold training up: the numbers of the moment of the call, one at a time, errors told in the end."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import scaling.checkpoint.checkpoints
import scaling.checkpoint.save
import scaling.checkpoint.snapshot
from scaling.checkpoint.errors import CheckpointError
from strategies.detect import HostMemory
from tests.scaling.checkpoint.alone import checkpoints, numbers, same, start_engine, state, train
from tests.scaling.full_disk import file_size_limit

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("_one_rank")]


class Gate:
    """Lets writing begin when it is told to, and counts what is written at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.now, self.most = 0, 0
        real = scaling.checkpoint.save.write

        def write(*args: Any) -> Path:
            self.now += 1
            self.most = max(self.most, self.now)
            assert self.open.wait(20)
            try:
                return real(*args)
            finally:
                self.now -= 1

        monkeypatch.setattr(scaling.checkpoint.checkpoints, "write", write)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def test_training_goes_on_and_the_numbers_are_those_of_the_call(tmp_path: Path, gate: Gate) -> None:
    engine = start_engine()
    train(engine, 1)
    before = numbers(engine)
    saved = checkpoints(tmp_path)
    assert saved.save(engine, state(1), in_background=True) is None
    train(engine, 3)
    assert not list(tmp_path.glob("step-*"))
    gate.open.set()
    assert saved.finish() == tmp_path / "step-00000001"
    restored = start_engine()
    checkpoints(tmp_path).load_latest(restored)
    assert same(numbers(restored), before)


def test_one_is_written_at_a_time(tmp_path: Path, gate: Gate) -> None:
    engine, saved = start_engine(), checkpoints(tmp_path, keep_last=0)
    saved.save(engine, state(1), in_background=True)
    threading.Timer(0.2, gate.open.set).start()
    saved.save(engine, state(2), in_background=True)
    saved.save(engine, state(3))
    assert gate.most == 1
    assert sorted(os.listdir(tmp_path)) == ["step-00000001", "step-00000002", "step-00000003"]


def test_what_goes_wrong_in_the_background_is_raised_by_the_next_call(tmp_path: Path) -> None:
    engine, saved = start_engine(), checkpoints(tmp_path)
    saved.save(engine, state(1))
    with file_size_limit(200):
        saved.save(engine, state(2), in_background=True)
        with pytest.raises(CheckpointError, match="cannot write a checkpoint"):
            saved.finish()
    assert os.listdir(tmp_path) == ["step-00000001"]
    saved.save(engine, state(3))
    assert checkpoints(tmp_path).load_latest(engine) == state(3)


def test_training_waits_where_a_copy_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = HostMemory(limit_bytes=1000, used_bytes=900, of="the container")
    monkeypatch.setattr(scaling.checkpoint.snapshot, "host_memory", lambda: full)
    saved = checkpoints(tmp_path)
    assert saved.save(start_engine(), state(1), in_background=True) == tmp_path / "step-00000001"
    assert "the host has no memory for a copy of the state" in caplog.text
