"""``scaling calibrate --from-records`` on records of runs that never were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.cli import main
from strategies.learning.run_record import RunRecord
from strategies.learning.run_store import append_run
from tests.strategies.learning.made_up import base_record, recorded


def run(*flags: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["scaling", *map(str, flags)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture(scope="module")
def base() -> RunRecord:
    return base_record(on_gpu=True)


def append(base: RunRecord, count: int) -> None:
    """Runs of the demo model under DDP, a third slower than predicted and 1 to 3 % larger."""
    for number in range(count):
        found = recorded(base=base, number=number, ratio=1.01 + 0.02 * number / (count - 1), step_ratio=4 / 3)
        append_run(replace(found, num_params=base.num_params, num_layers=number + 1))


def test_it_tells_and_writes_what_changes_and_plans_use_it(
    base: RunRecord, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # as a pipe has it: nothing is cut off
    append(base, 25)
    append_run(replace(base, version="0.0.1"))
    status, out, err = run("calibrate", "--from-records", capsys=capsys, monkeypatch=monkeypatch)
    assert (status, err) == (0, "")
    (peak,) = [line.split() for line in out.splitlines() if "ddp on gpu" in line and "2026" in line]
    # 25 ratios from 1.01 to 1.03: ranks ceil(26 * 0.95) = 25 and 1, and the median; before: the shipped errors.
    assert peak[-9:-6] == ["2026-01-01", "1.020", "1.020"]
    assert peak[-3:] == ["1.010", "to", "1.030"]
    (step,) = [line.split() for line in out.splitlines() if "on A100-80GB-SXM" in line and "2026" in line]
    assert step[-6:-4] == ["1.333", "1.049"]  # 4/3 to the power 5 / 30 is left
    assert "Left out: 1 of other versions of this package" in out
    assert "learned.json from 26 runs; plan and estimate use it" in out
    question = ("--gpus", 2, "--gpu", base.device, "--seq-len", 64, "--global-batch-size", 8, "--strategy", "ddp")
    status, out, _ = run("plan", "llama-demo", *question, capsys=capsys, monkeypatch=monkeypatch)
    assert status == 0
    assert "interval of the measured peak, from your 25 records of ddp on gpu, activation checkpointing none" in out
    assert "from your 25 records on A100-80GB-SXM, 25 of them of this model: " in out


def test_json_has_every_kind(
    base: RunRecord, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    append(base, 20)
    out_file = tmp_path / "elsewhere.json"
    status, out, _ = run(
        "calibrate", "--from-records", "--json", "--out", out_file, capsys=capsys, monkeypatch=monkeypatch
    )
    found = json.loads(out)
    assert (status, found["num_runs"], found["file"]) == (0, 20, str(out_file))
    assert [each["about"] for each in found["lessons"]] == ["peak memory", "step time"]
    assert found["lessons"][0]["after"] == {"low": pytest.approx(1.01), "high": pytest.approx(1.03)}
    assert json.loads(out_file.read_text())["format"] == 1


def test_too_few_runs_are_refused_with_what_is_needed(
    base: RunRecord, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = run("calibrate", "--from-records", capsys=capsys, monkeypatch=monkeypatch)
    assert status == 2
    assert "runs.jsonl has 0" in err
    append(base, 4)
    status, _, err = run("calibrate", "--from-records", capsys=capsys, monkeypatch=monkeypatch)
    assert status == 2
    assert "runs.jsonl has 4" in err
    assert "need 19 different setups of one strategy (4 of ddp on gpu)" in err
    assert "step times 5 on one device (4 of A100-80GB-SXM)" in err


def test_flags_that_do_not_go_together_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = run("calibrate", "--from-records", "--ranks", 2, capsys=capsys, monkeypatch=monkeypatch)
    assert status == 2
    assert "--ranks 2 has no effect" in err
    monkeypatch.setenv("MEMORY_SCALING_RECORDS", "off")
    status, _, err = run("calibrate", "--from-records", capsys=capsys, monkeypatch=monkeypatch)
    assert status == 2
    assert "MEMORY_SCALING_RECORDS=off" in err
    monkeypatch.setenv("MEMORY_SCALING_RECORDS", "~no-such-user/runs.jsonl")
    status, _, err = run("calibrate", "--from-records", capsys=capsys, monkeypatch=monkeypatch)
    assert status == 2
    assert "MEMORY_SCALING_RECORDS=~no-such-user/runs.jsonl: there is no such home folder; name the file" in err
