"""Pictures of runs from their metrics.jsonl."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from scaling.cli import app
from scaling.errors import ReportError
from scaling.watching.curves import read_curves
from tests.scaling.watching.made_up import evaluation, step


def write_run(folder: Path, *, end: str = "") -> Path:
    folder.mkdir()
    records = [step(1, seconds=1.0), step(2, seconds=1.0), evaluation(2)]
    lines = [json.dumps(asdict(record)) for record in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n" + end)
    return folder


def test_two_runs_are_drawn_in_one_picture(tmp_path: Path) -> None:
    runs = [str(write_run(tmp_path / name)) for name in ("first", "second")]
    picture = tmp_path / "curves.png"
    done = CliRunner().invoke(app, ["curves", *runs, "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == str(picture)
    with Image.open(picture) as image:
        assert image.size == (1320, 840)
        assert len(image.convert("RGB").getcolors(2**24)) > 50  # not an empty page


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    curves = read_curves(write_run(tmp_path / "run", end='{"step": 3, "lo'))
    assert curves.points("loss") == ([1, 2], [4.0, 3.0])
    assert [line["eval_loss"] for line in curves.evaluations] == [2.5]


def test_undefined_numbers_are_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", end='{"step": 3, "loss": null}\n')
    assert read_curves(folder).points("loss") == ([1, 2], [4.0, 3.0])


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"cannot read .*metrics.jsonl: No such file"):
        read_curves(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ReportError, match="has no step yet"):
        read_curves(tmp_path)
