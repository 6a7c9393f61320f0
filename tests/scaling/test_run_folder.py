"""When a run folder may be used, and that nothing in it is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scaling.errors import ConfigError
from scaling.run_folder import LOCK_FILE, check_run_folder, open_run_folder


def test_a_new_or_empty_folder_is_accepted_and_not_made_yet(tmp_path: Path) -> None:
    check_run_folder(tmp_path, plan=tmp_path / "elsewhere" / "plan.json", overwrite=False)
    new = tmp_path / "a" / "b"
    check_run_folder(new, plan=tmp_path / "plan.json", overwrite=False)
    assert not new.exists()


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"is not empty \(thesis.tex\); give another folder, or --overwrite"):
        check_run_folder(tmp_path, plan=Path("plan.json"), overwrite=False)


def test_the_folder_of_the_plan_is_accepted_until_a_run_is_in_it(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    check_run_folder(tmp_path, plan=plan, overwrite=False)
    (tmp_path / "metrics.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match=r"\(metrics.jsonl\)"):
        check_run_folder(tmp_path, plan=plan, overwrite=False)


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("")
    with pytest.raises(ConfigError, match="is a file; give a folder"):
        check_run_folder(path, plan=Path("plan.json"), overwrite=True)


def test_overwriting_keeps_every_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for number in ("first", "second"):
        with open_run_folder(tmp_path, plan=Path("plan.json"), overwrite=True):
            (tmp_path / "final").mkdir()
            (tmp_path / "final" / "model.safetensors").write_text(number)
    with open_run_folder(tmp_path, plan=Path("plan.json"), overwrite=True):
        pass
    assert (tmp_path / "previous-1" / "final" / "model.safetensors").read_text() == "first"
    assert (tmp_path / "previous-2" / "final" / "model.safetensors").read_text() == "second"
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "final").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_run_is_refused_while_one_writes_and_moves_nothing(tmp_path: Path, overwrite: bool) -> None:
    out, plan = tmp_path / "run", tmp_path / "plan.json"
    with open_run_folder(out, plan=plan, overwrite=False):
        (out / "metrics.jsonl").write_text("winner")
        with (
            pytest.raises(ConfigError, match=rf"is in use: process {os.getpid()} on .* writes a run to it"),
            open_run_folder(out, plan=plan, overwrite=overwrite),
        ):
            pass
        assert (out / "metrics.jsonl").read_text() == "winner"
        assert not (out / "previous-1").exists()
    assert [path.name for path in out.iterdir()] == ["metrics.jsonl"]


def test_a_folder_that_was_filled_since_it_was_checked_is_refused(tmp_path: Path) -> None:
    out, plan = tmp_path / "run", tmp_path / "plan.json"
    check_run_folder(out, plan=plan, overwrite=False)
    with open_run_folder(out, plan=plan, overwrite=False):
        (out / "metrics.jsonl").write_text("winner")
    with (
        pytest.raises(ConfigError, match=r"is not empty \(metrics.jsonl\)"),
        open_run_folder(out, plan=plan, overwrite=False),
    ):
        pass
    assert [path.name for path in out.iterdir()] == ["metrics.jsonl"]


def test_a_run_that_was_killed_before_it_wrote_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text("process 1 on elsewhere")
    check_run_folder(tmp_path, plan=Path("plan.json"), overwrite=False)
    with open_run_folder(tmp_path, plan=Path("plan.json"), overwrite=False):
        assert (tmp_path / LOCK_FILE).exists()
    assert list(tmp_path.iterdir()) == []
