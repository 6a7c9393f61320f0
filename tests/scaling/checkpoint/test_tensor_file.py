"""Our streamed files against the safetensors library."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import scaling.checkpoint.tensor_file
from scaling.checkpoint.tensor_file import NamedTensor, write_tensors

TENSORS = {
    "weight/a@0": torch.arange(10, dtype=torch.float32) / 7,
    "weight/b@5": torch.arange(7, dtype=torch.bfloat16),
    "step/a@0": torch.tensor([3.0]),
    "random/torch.rank0@0": torch.arange(255, dtype=torch.uint8),
    'exp_avg/ä"quoted"@0': torch.full((3,), float("nan"), dtype=torch.float16),
}


@pytest.mark.parametrize("piece_bytes", [1, 8, 2**20], ids=str)
def test_the_library_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(scaling.checkpoint.tensor_file, "PIECE_BYTES", piece_bytes)
    path = tmp_path / "file.safetensors"
    write_tensors(path, [NamedTensor(key=key, tensor=tensor) for key, tensor in TENSORS.items()])
    read = load_file(path)
    assert read.keys() == TENSORS.keys()
    for key, tensor in TENSORS.items():
        assert read[key].dtype == tensor.dtype
        assert torch.equal(read[key].view(torch.uint8), tensor.view(torch.uint8))


def test_size_and_checksum_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    num_bytes, sha256 = write_tensors(path, [NamedTensor(key="a", tensor=torch.ones(5))])
    assert num_bytes == path.stat().st_size
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_without_tensors_is_one_too(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file.safetensors", [])
    assert load_file(tmp_path / "file.safetensors") == {}


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    path.write_text("somebody's")
    with pytest.raises(FileExistsError):
        write_tensors(path, [])
    assert path.read_text() == "somebody's"
