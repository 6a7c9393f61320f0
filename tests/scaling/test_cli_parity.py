"""``scaling parity``: exit codes, what is stored, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parity_models import FOLDER
from scaling.parity.certificate import Certificate, Row, limits_for
from scaling.parity.variants import LeftOut
from strategies.job import Job, Precision
from tests.scaling.launching import run_cli as run

GOOD = ["parity", str(FOLDER / "tiny-llama.json"), "--seq-len", "64", "--global-batch-size", "8"]
JOB = Job(seq_len=64, global_batch_size=8, precision=Precision.FP32)
ALIKE = Row(name="ddp", accumulation=2, loss=0.0, norm=0.0, parameter=0.0, same_bits_as="ddp", seconds=1.0, alike=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*GOOD, "--strategies", "ddp,zero4"], "--strategies has 'zero4'; give names out of ddp, zero1"),
        ([*GOOD, "--set", "learning_rte=1"], "unknown setting 'learning_rte'; did you mean learning_rate?"),
        ([*GOOD, "--micro-batch-size", "3"], "micro_batch_size=3"),
        ([*GOOD, "--optimizer", "lion"], "optimizer=lion"),
        ([*GOOD[:2], "--seq-len", "64", "--global-batch-size", "7"], "global_batch_size=7"),
        (["parity", "not-a-preset", *GOOD[2:]], "not-a-preset"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, words) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("rows", "failed", "exit_code"),
    [
        ((ALIKE,), (), 0),
        ((ALIKE, replace(ALIKE, name="zero1", loss=1.0, alike=False)), (), 1),
        ((ALIKE,), (LeftOut(name="zero1", reason="it broke"),), 1),
    ],
)
def test_the_exit_code_is_the_verdict(
    rows: tuple[Row, ...],
    failed: tuple[LeftOut, ...],
    exit_code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = Certificate(
        model="toy",
        ranks=2,
        job=JOB,
        steps=2,
        first_loss=4.0,
        last_loss=2.0,
        limits=limits_for(JOB),
        rows=rows,
        left_out=(),
        failed=failed,
        versions={},
    )
    monkeypatch.setattr("scaling.parity.certify.certify", lambda *_, **__: found)
    assert run(monkeypatch, [*GOOD, "--strategies", "ddp", "--out", str(tmp_path / "p.json")]) == exit_code
    printed = capfd.readouterr().out
    assert ("NOT alike: zero1" in printed) == (exit_code == 1)
    assert json.loads((tmp_path / "p.json").read_text())["limits"] == {"loss": 1e-6, "norm": 1e-6, "parameter": 2e-4}


@pytest.mark.distributed
@pytest.mark.slow
def test_a_model_and_data_of_ones_own_are_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "own.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 200)
    own = ["--data", str(text), "--steps", "4", "--set", "learning_rate=1e-2", "--set", f"cache_dir={tmp_path / 'c'}"]
    out = tmp_path / "p.json"
    assert run(monkeypatch, [*GOOD, *own, "--strategies", "ddp", "--json", "--out", str(out)]) == 0
    certificate: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert certificate == json.loads(out.read_text())
    assert [(row["name"], row["accumulation"], row["alike"]) for row in certificate["rows"]] == [("ddp", 2, True)]
    assert certificate["last_loss"] < 0.95 * certificate["first_loss"]
