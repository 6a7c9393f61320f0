"""Files of others, each with the verdict that was written down beside it before."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

from benchmarks.explain_configs import RESULT, judged, manifest
from scaling.cli import app

ROWS = {row["file"]: row for row in manifest()}


@pytest.mark.parametrize("name", ROWS)
def test_verdict_is_that_of_the_manifest(name: str) -> None:
    verdict = judged(ROWS[name])
    wanted = ROWS[name]["status"]
    assert verdict.ours == wanted
    if wanted.startswith("valid"):
        assert verdict.errors == 0


def test_result_table_is_current() -> None:
    with RESULT.open(newline="", encoding="utf-8") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    assert {name: (row["expected"], row["ours"]) for name, row in rows.items()} == {
        name: (row["status"], judged(row).ours) for name, row in ROWS.items()
    }


@pytest.mark.parametrize("name", ROWS)
def test_command_ends_without_traceback(name: str) -> None:
    from benchmarks.explain_configs import REFERENCE

    result = CliRunner().invoke(app, ["explain", str(REFERENCE / name)])
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert name in result.output
