"""Safetensors files written as a stream: a piece of one tensor in memory at a time, the checksum made on the way.

The library's own writer takes all tensors of a file at once; reading is the library's. Format: an 8-byte length, a JSON
header of that length, the tensors' bytes one after the other
(https://github.com/huggingface/safetensors, "Format", version 0.6).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PIECE_BYTES = 32 * 2**20
"""Copied to host memory at a time: our choice, far above what a disk needs to run at its full speed."""
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTensor:
    """One tensor of a file: 1-d, on any device."""

    key: str
    tensor: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


def write_tensors(path: Path, tensors: Sequence[NamedTensor]) -> tuple[int, str]:
    """Write the tensors to ``path`` and to the disk under it; return the file's bytes and SHA-256.

    Raises:
        OSError: the operating system refuses.
    """
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for piece in _pieces(tensors):
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), digest.hexdigest()


def _pieces(tensors: Sequence[NamedTensor]) -> Iterator[Any]:
    header = _header(tensors)
    yield len(header).to_bytes(8, "little")
    yield header
    for each in tensors:
        per_piece = max(1, PIECE_BYTES // each.tensor.element_size())
        for piece in torch.split(each.tensor.detach(), per_piece):
            yield piece.contiguous().cpu().view(torch.uint8).numpy()


def _header(tensors: Sequence[NamedTensor]) -> bytes:
    offset, entries = 0, {}
    for each in tensors:
        end = offset + each.num_bytes
        entries[each.key] = {
            "dtype": _CODES[each.tensor.dtype],
            "shape": list(each.tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries)
    return (text + " " * (-len(text) % 8)).encode()  # tensors start at a multiple of eight, as the library has them
