"""Tensors of a foreign folder, and the reading of files that torch.save has written, of which nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from scaling.checkpoint.errors import CheckpointError
from scaling.errors import kind_and_line


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A whole tensor that is read when it is asked for."""

    shape: tuple[int, ...]
    load: Callable[[], torch.Tensor]
    """Returns it on the CPU, of this shape."""
    shape_is_known: bool = True
    """Whether the folder tells the shape; else it is that of all elements in a row."""


class Inert:
    """What stands in for an object of a class that is not torch's: it keeps what the file says of it, and does nothing.

    A file of torch.save is a program that names classes and calls them. With ``weights_only`` torch calls those that
    it knows to be harmless, and those that it is given by name; it is given this one for every other name.
    """

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


def safe_load(path: Path) -> Any:
    """Return what torch.save has written to ``path``, its tensors read when they are used.

    Raises:
        CheckpointError: the file cannot be read, or asks for something that is never given.
    """
    try:
        unknown = get_unsafe_globals_in_checkpoint(path)
        with safe_globals([(Inert, name) for name in unknown]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        # torch's advice around it, to load the file all the same, is not ours.
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), type(error).__name__).rstrip(".")
        raise CheckpointError(
            f"{path} asks for more than tensors and plain values, which is never given: {reason}; take another "
            f"checkpoint"
        ) from error
    except Exception as error:  # a damaged program fails in any way: struct.error and AssertionError are among them
        raise CheckpointError(f"cannot read {path}: {kind_and_line(error)}; take another checkpoint") from error


def of_pieces(shape: Sequence[int], pieces: Sequence[torch.Tensor]) -> StoredTensor:
    """Return the tensor whose elements are the first of ``pieces``, 1-d and one after the other."""
    size = torch.Size(shape)

    def load() -> torch.Tensor:
        flat = pieces[0] if len(pieces) == 1 else torch.cat([*pieces])
        return flat[: size.numel()].view(size)

    return StoredTensor(shape=tuple(size), load=load)


def cut(flats: Sequence[torch.Tensor], start: int, end: int) -> list[torch.Tensor]:
    """Return views of the elements ``start`` to ``end`` of 1-d tensors that lie one after the other.

    >>> [each.tolist() for each in cut([torch.arange(3), torch.arange(3, 5)], 1, 4)]
    [[1, 2], [3]]
    """
    views = []
    first = 0
    for flat in flats:
        low, high = max(start, first), min(end, first + flat.numel())
        if low < high:
            views.append(flat[low - first : high - first])
        first += flat.numel()
    return views
