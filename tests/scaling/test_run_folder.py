"""When a run folder may be used, and that nothing in it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import ConfigError
from scaling.run_folder import check_run_folder, open_run_folder


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
        check_run_folder(tmp_path, plan=Path("plan.json"), overwrite=True)
        open_run_folder(tmp_path)
        (tmp_path / "final").mkdir()
        (tmp_path / "final" / "model.safetensors").write_text(number)
    open_run_folder(tmp_path)
    assert (tmp_path / "previous-1" / "final" / "model.safetensors").read_text() == "first"
    assert (tmp_path / "previous-2" / "final" / "model.safetensors").read_text() == "second"
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "final").exists()
