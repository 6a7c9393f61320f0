"""Files of torch.save that are damaged or forged: a line that names them, whatever the reader of pickles says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch.serialization import _open_zipfile_reader, _open_zipfile_writer

from scaling.checkpoint.errors import CheckpointError
from scaling.foreign.stored import safe_load


def write(path: Path, program: bytes) -> Path:
    """Write a file as torch.save does, of a pickle that is complete or not, with checksums that are right."""
    with _open_zipfile_writer(str(path)) as archive:
        archive.write_record("data.pkl", program, len(program))
        archive.write_record("data/0", bytes(16), 16)
    return path


@pytest.fixture
def program(tmp_path: Path) -> bytes:
    """The pickle of a small file."""
    torch.save({"name": "text", "tensor": torch.zeros(4), "numbers": [1, 2.5, 1000]}, tmp_path / "whole.pt")
    with _open_zipfile_reader(str(tmp_path / "whole.pt")) as archive:
        found: bytes = archive.get_record("data.pkl")
        return found


def test_a_program_that_ends_inside_a_number_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "cut.pt", b"\x80\x02X\x00")  # two of the four bytes of a text's length are missing
    with pytest.raises(CheckpointError, match=r"cannot read .*cut\.pt: error: unpack requires a buffer of 4 bytes"):
        safe_load(path)


def test_any_damage_is_an_error_of_ours_or_none(program: bytes, tmp_path: Path) -> None:
    assert torch.equal(safe_load(write(tmp_path / "whole.pt", program))["tensor"], torch.zeros(4))
    chance = random.Random(0)
    messages = []
    for at in range(len(program)):
        damaged = bytearray(program)
        damaged[at] ^= 1 << chance.randrange(8)
        try:
            safe_load(write(tmp_path / "damaged.pt", bytes(damaged)))
        except CheckpointError as error:
            messages.append(str(error))
    assert len(messages) > len(program) / 4
    assert all(str(tmp_path / "damaged.pt") in message for message in messages)
