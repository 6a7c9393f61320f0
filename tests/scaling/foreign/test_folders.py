"""Folders of other programs in which a file is not what its name says: one line that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint_import import import_checkpoint
from tests.scaling.decisions import TINY_LLAMA

INDEX = "model.safetensors.index.json"


def _save(folder: Path, name: str, content: object) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, folder / name)


def _universal_without_a_module(folder: Path) -> None:
    _save(folder, "zero/w/fp32.pt", {"param": torch.zeros(2)})
    _save(folder, "mp_rank_00_model_states.pt", {"module": {"a": 3}, "buffer_names": ["a"]})


STRANGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a name without an end": (lambda folder: (folder / "latest").write_text("x" * 5000), "no checkpoint that is known"),
    "a name that is a folder": (lambda folder: (folder / "latest").mkdir(), "no checkpoint that is known"),
    "an index that is a list": (lambda folder: (folder / INDEX).write_text("[]"), "cannot read"),
    "an index of brackets": (lambda folder: (folder / INDEX).write_text("[" * 100_000), "cannot read"),
    "an index of numbers": (lambda folder: (folder / INDEX).write_text('{"weight_map": {"a": 1, "b": "x"}}'), "cannot"),
    "tensors without names": (lambda folder: _save(folder, "pytorch_model.bin", [1]), "holds no tensors by name"),
    "numbers for names": (lambda folder: _save(folder, "pytorch_model.bin", {1: torch.zeros(2)}), "has 1 of shape"),
    "an empty file": (lambda folder: (folder / "pytorch_model.bin").touch(), "cannot read"),
    "an empty safetensors file": (lambda folder: (folder / "model.safetensors").touch(), "cannot read"),
    "no tensor": (lambda folder: _save(folder, "zero/w/fp32.pt", {"param": None}), "holds no tensor"),
    "a buffer that is a number": (_universal_without_a_module, "has w of shape (2,)"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_wrong_with_a_folder_is_a_line(name: str, tmp_path: Path) -> None:
    make, message = STRANGE[name]
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))
    (tmp_path / "theirs").mkdir()
    make(tmp_path / "theirs")
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(tmp_path / "theirs", model=str(tmp_path / "config.json"), out=tmp_path / "model")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()
