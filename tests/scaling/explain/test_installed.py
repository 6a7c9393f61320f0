"""Other versions than those that the key tables were made from."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from scaling.explain import installed
from scaling.explain.findings import Severity
from tests.scaling.explain.cases import of_deepspeed

ZENFLOW = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "zenflow": {"topk_ratio": 0.1}},
}


def test_packages_that_are_missing_are_read_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed_version", lambda package: None)
    found = installed.installed_tables()
    assert [note.split()[0] for note in found.notes] == ["deepspeed", "accelerate", "transformers"]
    assert all("not installed" in note for note in found.notes)
    assert "zero_optimization.stage" in found.by_package["deepspeed"].keys


def test_recorded_versions_are_taken_without_a_word() -> None:
    assert installed.installed_tables().notes == ()


def test_another_version_decides_and_says_what_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A DeepSpeed without ZenFlow: its own table, made before, lies in the cache folder."""
    table = json.loads((resources.files("scaling.explain") / "tables" / "deepspeed.json").read_text())
    table["version"] = "0.16.2"
    table["keys"] = [row for row in table["keys"] if "zenflow" not in row["path"]]
    place = tmp_path / "memory-scaling" / "key-tables" / "0.16.2" / "deepspeed.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(table))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recorded = installed.installed_version
    monkeypatch.setattr(
        installed, "installed_version", lambda name: "0.16.2" if name == "deepspeed" else recorded(name)
    )
    found = installed.installed_tables()
    assert len(found.notes) == 1
    assert "deepspeed 0.16.2 is installed" in found.notes[0]
    assert "without zero_optimization.zenflow" in found.notes[0]
    errors = [
        each.key
        for each in of_deepspeed(ZENFLOW, world_size=1, tables=found.by_package).findings
        if each.severity is Severity.ERROR
    ]
    assert errors == ["zero_optimization.zenflow"]
    assert [each for each in of_deepspeed(ZENFLOW, world_size=1).findings if each.severity is Severity.ERROR] == []


def test_version_whose_keys_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "memory-scaling" / "key-tables" / "9.9" / "accelerate.json"
    place.parent.mkdir(parents=True)
    place.write_text("{")
    recorded = installed.installed_version
    monkeypatch.setattr(installed, "installed_version", lambda name: "9.9" if name == "accelerate" else recorded(name))
    (note,) = installed.installed_tables().notes
    assert "accelerate 9.9 is installed, but its keys cannot be read" in note
