"""The file of runs: what a line holds, several writers at once, and lines that are none."""

from __future__ import annotations

import json
import logging
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from strategies.errors import ScalingError
from strategies.learning.run_record import RunRecord
from strategies.learning.run_store import append_line, append_run, read_runs, runs_path
from tests.strategies.learning.made_up import base_record, recorded

WRITERS, LINES = 4, 200


@pytest.fixture
def record() -> RunRecord:
    return recorded(base=base_record(), step_ratio=1.5)


def test_a_run_is_one_line_that_reads_back(record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "new" / "runs.jsonl"
    monkeypatch.setenv("MEMORY_SCALING_RECORDS", str(path))
    append_run(record)
    append_run(replace(record, measured_step_s=None))
    assert runs_path() == path
    lines = path.read_text().splitlines()
    assert [json.loads(line)["measured_step_s"] for line in lines] == [3.0, None]
    assert read_runs(path) == (record, replace(record, measured_step_s=None))


def test_a_line_tells_no_model_name_and_no_path(tmp_path: Path, record: RunRecord) -> None:
    append_line(tmp_path / "runs", json.dumps({name: str(getattr(record, name)) for name in record.__slots__}))
    text = (tmp_path / "runs").read_text()
    assert "llama-demo" not in text
    assert str(Path.home()) not in text
    assert not any(value.startswith("/") for value in json.loads(text).values())


def test_it_lies_in_the_users_data_folder_and_can_be_turned_off(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert runs_path() == tmp_path / "memory-scaling" / "runs.jsonl"
    monkeypatch.setenv("MEMORY_SCALING_RECORDS", "off")
    append_run(record)
    assert runs_path() is None
    assert not any(tmp_path.iterdir())


def _write_lines(path: Path, writer: int) -> None:
    for number in range(LINES):
        append_line(path, json.dumps([writer, number, "x" * 900]))


def test_lines_of_several_writers_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_lines, args=(path, writer)) for writer in range(WRITERS)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    found = [json.loads(line)[:2] for line in path.read_text().splitlines()]
    assert sorted(found) == [[writer, number] for writer in range(WRITERS) for number in range(LINES)]


@pytest.mark.parametrize("home", ["a file", "read only", "full"])
def test_no_run_fails_where_it_cannot_be_recorded(
    home: str, record: RunRecord, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    places = {"a file": tmp_path / "file" / "runs", "read only": Path("/proc/runs"), "full": Path("/dev/full")}
    monkeypatch.setenv("MEMORY_SCALING_RECORDS", str(places[home]))
    append_run(record)
    assert [message for message in caplog.messages if "was not added to your records" in message] == caplog.messages
    assert len(caplog.messages) == 1


def test_lines_that_are_no_runs_do_not_count_and_one_warning_names_them(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    monkeypatch.setenv("MEMORY_SCALING_RECORDS", str(path))
    append_run(record)
    good = path.read_text()
    foreign = json.dumps(json.loads(good) | {"format": 99})
    unknown = json.dumps(json.loads(good) | {"colour": "red"})
    beyond = json.dumps(json.loads(good) | {"measured_allocated_bytes": 10**30})
    path.write_bytes(f"{good}{foreign}\n\n{unknown}\n{beyond}\n{{\n[1]\n".encode() + b"\xff\xfe\n" + good[:80].encode())
    append_run(record)  # ends the torn line first
    with caplog.at_level(logging.WARNING):
        assert read_runs(path) == (record, record)
    assert len(caplog.messages) == 1
    assert f"{path}: 7 of 9 lines are no runs that this version reads" in caplog.messages[0]
    assert "line 2, 4, 5, 6, 7, ..." in caplog.messages[0]


def test_no_file_holds_no_runs_and_a_folder_is_no_file(tmp_path: Path) -> None:
    assert read_runs(tmp_path / "none") == ()
    with pytest.raises(ScalingError, match="cannot read the records of runs"):
        read_runs(tmp_path)
