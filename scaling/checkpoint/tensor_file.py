"""Safetensors files written as a stream: a piece of one tensor in memory at a time, the checksum made on the way.

The library's own writer takes all tensors of a file at once; reading is the library's. Format: an 8-byte length, a JSON
header of that length, the tensors' bytes one after the other
(https://github.com/huggingface/safetensors, "Format", version 0.6).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

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
    """One tensor of a file, on any device."""

    key: str
    tensor: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """One tensor of a file, before it is there."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, key: str, tensor: torch.Tensor) -> PlannedTensor:
        return cls(key=key, shape=tuple(tensor.shape), dtype=tensor.dtype)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(path: Path, tensors: Sequence[NamedTensor]) -> tuple[int, str]:
    """Write the tensors to ``path`` and to the disk under it; return the file's bytes and SHA-256.

    Raises:
        OSError: the operating system refuses.
    """
    file = TensorFile(path, [PlannedTensor.of(each.key, each.tensor) for each in tensors])
    try:
        for each in tensors:
            file.add(each.tensor)
        return file.finish()
    finally:
        file.close()


@final
class TensorFile:
    """A file that is being written: its header says what will come, and then the tensors come in that order.

    Raises:
        OSError: the operating system refuses; so do the methods.
    """

    def __init__(
        self, path: Path, planned: Sequence[PlannedTensor], *, metadata: Mapping[str, str] | None = None
    ) -> None:
        self._digest = hashlib.sha256()
        self._coming = deque(planned)
        self._file = path.open("xb")
        header = _header(planned, metadata)
        self._put(len(header).to_bytes(8, "little"))
        self._put(header)

    def add(self, tensor: torch.Tensor) -> None:
        """Write the tensor whose turn it is."""
        expected = self._coming.popleft()
        assert PlannedTensor.of(expected.key, tensor) == expected, f"{expected} was planned, not {tensor.shape}"
        for piece in byte_pieces(tensor):
            self._put(piece)

    @property
    def is_complete(self) -> bool:
        """Whether all tensors have come."""
        return not self._coming

    def finish(self) -> tuple[int, str]:
        """Wait until all is on the disk; return the file's bytes and SHA-256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell(), self._digest.hexdigest()

    def close(self) -> None:
        """Give the file back, complete or not; closing one that a full disk has cut may fail again."""
        self._file.close()

    def _put(self, piece: Any) -> None:
        self._file.write(piece)
        self._digest.update(piece)


def byte_pieces(tensor: torch.Tensor) -> Iterator[Any]:
    """Yield the tensor's bytes on the CPU, a piece at a time, as what files and checksums take."""
    flat = tensor.detach().contiguous().view(-1)
    for piece in torch.split(flat, max(1, PIECE_BYTES // flat.element_size())):
        yield piece.cpu().view(torch.uint8).numpy()


def _header(planned: Sequence[PlannedTensor], metadata: Mapping[str, str] | None) -> bytes:
    offset = 0
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for each in planned:
        end = offset + each.num_bytes
        entries[each.key] = {
            "dtype": _CODES[each.dtype],
            "shape": list(each.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries)
    return (text + " " * (-len(text) % 8)).encode()  # tensors start at a multiple of eight, as the library has them
