"""The README's figures are those of the result files, and `benchmarks.suite` makes what they come from."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from benchmarks import figures, suite


def test_the_readme_shows_what_the_result_files_say() -> None:
    assert figures.shown() == figures.text()


def test_writing_changes_nothing_but_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "README.md"
    whole = figures.README.read_text()
    copy.write_text(whole.replace("median error", "no error"))
    monkeypatch.setattr(figures, "README", copy)
    figures.write()
    outside = re.compile(re.escape(figures.BEGIN) + ".*" + re.escape(figures.END), flags=re.DOTALL)
    assert figures.shown() == figures.text()
    assert outside.sub("", copy.read_text()) == outside.sub("", whole.replace("median error", "no error"))


@pytest.mark.parametrize(
    ("share", "told"), [(0.4583, "46%"), (0.0927, "9.3%"), (0.0306, "3.1%"), (5.4e-06, "0.0005%"), (0.95, "95%")]
)
def test_percentages_keep_two_digits_that_count(share: float, told: str) -> None:
    assert figures.percent(share) == told


def test_every_script_named_beside_a_figure_is_there() -> None:
    for script in re.findall(r"`(\w+\.py)`", figures.text()):
        assert (Path(figures.__file__).parent / script).is_file(), script


@pytest.mark.parametrize(
    ("code", "wrote", "outcome"),
    [
        (0, True, suite.Outcome.DONE),
        (1, True, suite.Outcome.MISSED),
        (1, False, suite.Outcome.FAILED),  # a traceback
        (0, False, suite.Outcome.FAILED),
        (-9, True, suite.Outcome.FAILED),
    ],
)
def test_a_part_counts_where_it_has_written_its_result(code: int, wrote: bool, outcome: suite.Outcome) -> None:
    assert suite.outcome(code, wrote=wrote) is outcome


def test_a_part_that_writes_nothing_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    old = tmp_path / "environment.json"
    old.write_text("{}")
    time.sleep(0.01)
    ran = suite.run(suite.Part(name="environment", answers="nothing", result=old.name))
    assert ran.outcome is suite.Outcome.FAILED


def test_parts_are_scripts_and_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for part in suite.PARTS:
        assert (Path(suite.__file__).parent / f"{part.name}.py").is_file(), part.name
    assert suite.main(["steptime"]) == 2
    assert "no benchmark steptime" in capsys.readouterr().err
