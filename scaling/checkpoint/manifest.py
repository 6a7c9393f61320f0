"""What a checkpoint is: a folder of safetensors files and a manifest that says what belongs to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scaling.checkpoint.errors import CheckpointError
from scaling.engines.loss_scale import UpdateState
from scaling.errors import kind_and_line
from strategies.errors import ScalingError
from strategies.serialize import from_json, to_json

FORMAT = 1
"""Raised when a reader of the version before would misunderstand the folder."""
MANIFEST_FILE = "manifest.json"
ANOTHER = "take another checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """What a run goes on from besides its tensors. Nothing in it depends on the number of ranks."""

    step: int
    """Optimizer steps done."""
    num_samples_seen: int
    """Consumed over all ranks: the position in `scaling.data.order.SampleOrder`."""
    eval_loss: float | None = None
    """The last one before; None where nothing was evaluated."""
    schedule: Mapping[str, float] = field(default_factory=dict)
    """Of a schedule that is no function of the step alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One whole tensor of the training state, or one rank's random state."""

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    """torch's word without its prefix: float32, bfloat16, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file beside the manifest."""

    name: str
    rank: int
    """Who wrote it."""
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """manifest.json: written last, so a folder without it is no checkpoint."""

    format: int
    state: TrainingState
    updates: UpdateState
    """Of the engine: the loss scale, and what has become of the steps."""
    identity: Mapping[str, str]
    """What must be the same for the run that goes on: data, order, optimizer."""
    strategy: str
    world_size: int
    tensors: tuple[TensorEntry, ...]
    files: tuple[FileEntry, ...]
    versions: Mapping[str, str]


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write the manifest with its own checksum, in one go."""
    text = to_json(manifest)
    path.write_text(json.dumps({"sha256": _checksum(text), "manifest": json.loads(text)}, indent=1) + "\n")


def _inside(folder: Path) -> str | None:
    """Return advice where the folder is a run's, and the checkpoints lie below it."""
    latest = max(folder.glob(f"*/*/{MANIFEST_FILE}"), default=None)
    return f"give {latest.parent}" if latest else None


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint, its own checksum verified; the files are not looked at.

    Raises:
        CheckpointError: there is none, it is damaged, or it is of a later format.
    """
    path = folder / MANIFEST_FILE
    try:
        if not path.is_file():
            raise CheckpointError(
                f"{folder} is no complete checkpoint: it has no {MANIFEST_FILE}; {_inside(folder) or ANOTHER}"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
        text = json.dumps(content["manifest"], indent=2) + "\n"
        checksum, format_ = content["sha256"], content["manifest"]["format"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {kind_and_line(error)}; {ANOTHER}") from error
    if _checksum(text) != checksum:
        raise CheckpointError(f"{path} is damaged: its checksum is not the one it was written with; {ANOTHER}")
    if format_ != FORMAT:
        raise CheckpointError(
            f"{path} has format={format_}, this version reads format={FORMAT}; use the version it says"
        )
    try:
        return from_json(Manifest, text, source=str(path), advice=ANOTHER)
    except ScalingError as error:
        raise CheckpointError(str(error)) from error


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
