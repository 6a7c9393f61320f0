"""What a checkpoint holds, told without reading its tensors."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.manifest import MANIFEST_FILE, Manifest, TensorEntry, read_manifest
from scaling.checkpoint.names import find_checkpoints, step_of
from scaling.checkpoint.verify import verify
from scaling.engines.state import WEIGHT
from strategies.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """One checkpoint."""

    folder: str
    problem: str | None
    """Why it cannot be gone on from; None where nothing was found. What follows is None or empty with a problem."""
    step: int | None = None
    eval_loss: float | None = None
    strategy: str | None = None
    world_size: int | None = None
    num_parameters: int | None = None
    bytes_by_kind: Mapping[str, int]
    """Of the whole tensors: weights, buffers and each state of the optimizer."""
    num_bytes: int | None = None
    """Of all files."""
    versions: Mapping[str, str]

    def lines(self) -> list[str]:
        """Return the checkpoint as lines to print."""
        if self.problem is not None:
            return [f"{self.folder}: cannot be gone on from: {self.problem}"]
        kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in self.bytes_by_kind.items())
        evaluated = "" if self.eval_loss is None else f", eval_loss {self.eval_loss:.4f}"
        return [
            f"{self.folder}: step {self.step}{evaluated}, saved under {self.strategy} by {self.world_size} ranks",
            f"  {self.num_parameters:,} parameters; {kinds}; {format_bytes(self.num_bytes or 0)} on disk",
        ]


def inspect(folder: Path, *, checksums: bool = False) -> Inspection:
    """Return what the checkpoint in ``folder`` is; with ``checksums`` every byte of it is read."""
    try:
        manifest = read_manifest(folder)
        _require_files(manifest, folder)
        if checksums:
            verify(folder)
        kinds = _bytes_by_kind(manifest)
    except CheckpointError as error:
        return Inspection(folder=str(folder), problem=str(error), bytes_by_kind={}, versions={})
    return Inspection(
        folder=str(folder),
        problem=None,
        step=manifest.state.step,
        eval_loss=manifest.state.eval_loss,
        strategy=manifest.strategy,
        world_size=manifest.world_size,
        num_parameters=sum(_num_elements(entry) for entry in manifest.tensors if entry.kind == WEIGHT),
        bytes_by_kind=kinds,
        num_bytes=sum(entry.num_bytes for entry in manifest.files),
        versions=manifest.versions,
    )


def checkpoints_at(path: Path, *, inside: str) -> Sequence[Path]:
    """Return the checkpoint that ``path`` is, or those in it, or in its folder ``inside``; the latest step first.

    Raises:
        CheckpointError: there is none, or the folder cannot be read.
    """
    if _is_one(path):
        return [path]
    found = find_checkpoints(path) or find_checkpoints(path / inside)
    if not found:
        raise CheckpointError(f"{path} is no checkpoint and has none in it; give a checkpoint or the --out of a run")
    return found


def _is_one(path: Path) -> bool:
    try:
        return (path / MANIFEST_FILE).is_file() or (path.exists() and step_of(Path(os.path.realpath(path))) is not None)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; give a folder that you may read") from error


def _require_files(manifest: Manifest, folder: Path) -> None:
    for entry in manifest.files:
        path = folder / entry.name
        size = path.stat().st_size if path.is_file() else None
        if size != entry.num_bytes:
            raise CheckpointError(f"{path} has {size} bytes and was written with {entry.num_bytes}")


def _bytes_by_kind(manifest: Manifest) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for entry in manifest.tensors:
        dtype = getattr(torch, entry.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise CheckpointError(f"{entry.kind} {entry.name} is in the format {entry.dtype!r}, which torch has not")
        kinds[entry.kind] += _num_elements(entry) * dtype.itemsize
    return dict(kinds)


def _num_elements(entry: TensorEntry) -> int:
    return math.prod(entry.shape)
