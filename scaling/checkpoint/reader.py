"""Reading a checkpoint: any range of any tensor, whichever ranks wrote it, without holding more than a piece."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.manifest import ANOTHER, Manifest, TensorEntry, read_manifest
from scaling.checkpoint.names import RANDOM, parse_key
from scaling.checkpoint.tensor_file import PIECE_BYTES

TENSORS = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """One slice in one file."""

    start: int
    end: int
    key: str
    file: str


class CheckpointReader:
    """An open checkpoint; a context, so that its files are closed. Verify it first: nothing is checked here but names.

    Raises:
        CheckpointError: the manifest or a file cannot be read, or slices are missing or overlap.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder)
        self._files: dict[str, Any] = {}
        self._slices: dict[tuple[str, str], list[_Stored]] = defaultdict(list)
        self._closing = ExitStack()
        self.entries = {(entry.kind, entry.name): entry for entry in self.manifest.tensors}
        try:
            self._index()
            self._require_all()
        except BaseException:
            self._closing.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def copy_range(self, kind: str, name: str, start: int, target: torch.Tensor) -> None:
        """Fill the 1-d ``target`` with the tensor's elements from ``start`` on, in its own format and on its device.

        Raises:
            CheckpointError: the checkpoint has no such tensor.
        """
        end = start + target.numel()
        for each in self._overlapping(kind, name, start, end):
            first, last = max(start, each.start), min(end, each.end)
            source = self._files[each.file].get_slice(each.key)
            for low, high in _pieces(first, last):
                piece = source[low - each.start : high - each.start]
                target[low - start : high - start].copy_(piece)

    def whole(self, kind: str, name: str) -> torch.Tensor:
        """Return the whole tensor on the CPU, in the format it was saved in."""
        entry = self.entries[kind, name]
        tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        self.copy_range(kind, name, 0, tensor.view(-1))
        return tensor

    def random_states(self, rank: int) -> dict[str, torch.Tensor]:
        """Return the random states that a rank wrote, by generator."""
        suffix = f".rank{rank}"
        return {
            name.removesuffix(suffix): self._files[slices[0].file].get_tensor(slices[0].key)
            for (kind, name), slices in self._slices.items()
            if kind == RANDOM and name.endswith(suffix)
        }

    def _index(self) -> None:
        for entry in self.manifest.files:
            if not entry.name.endswith(TENSORS):
                continue
            try:
                file = self._closing.enter_context(safe_open(self.folder / entry.name, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"cannot read {self.folder / entry.name}: {error}; {ANOTHER}") from error
            self._files[entry.name] = file
            for key in file.keys():  # noqa: SIM118  # no mapping
                kind, name, start = parse_key(key)
                (length,) = file.get_slice(key).get_shape()
                self._slices[kind, name].append(_Stored(start=start, end=start + length, key=key, file=entry.name))
        for stored in self._slices.values():
            stored.sort(key=lambda each: each.start)

    def _require_all(self) -> None:
        for (kind, name), entry in self.entries.items():
            end = 0
            for each in self._slices[kind, name]:
                if each.start != end:
                    break
                end = each.end
            if end != _numel(entry):
                raise CheckpointError(
                    f"{self.folder} holds {end} of the {_numel(entry)} elements of {kind} {name} in a row; {ANOTHER}"
                )

    def _overlapping(self, kind: str, name: str, start: int, end: int) -> Iterator[_Stored]:
        if (kind, name) not in self.entries:
            raise CheckpointError(f"{self.folder} has no {kind} of {name}; {ANOTHER}")
        stored = self._slices[kind, name]
        index = max(0, bisect_right(stored, start, key=lambda each: each.start) - 1)
        while index < len(stored) and stored[index].start < end:
            yield stored[index]
            index += 1


def _numel(entry: TensorEntry) -> int:
    return torch.Size(entry.shape).numel()


def _pieces(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield ranges that fit a piece whatever the format, at most eight bytes an element."""
    for low in range(first, last, PIECE_BYTES // 8):
        yield low, min(low + PIECE_BYTES // 8, last)
