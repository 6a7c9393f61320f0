"""Names of folders and of the tensors in their files."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

from scaling.checkpoint.errors import CheckpointError

PARTIAL = ".partial"
"""Ends the name of a folder that is being written or removed; whatever is in it does not count."""
REPLACED = ".replaced"
"""Ends the name of a checkpoint whose place another one of the same step is just taking."""
RANDOM = "random"
"""Kind of the tensors that are one process's random states."""
_NAME = re.compile(rf"step-(\d+)|\.step-(\d+)\.\w+{re.escape(REPLACED)}")


def checkpoint_name(step: int) -> str:
    """Return the folder's name, such that sorting by name sorts by step.

    >>> checkpoint_name(120)
    'step-00000120'
    """
    return f"step-{step:08d}"


def find_checkpoints(parent: Path) -> list[Path]:
    """Return the folders in ``parent`` that have the name of a checkpoint, the latest step first; not yet verified.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    try:
        inside = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    except OSError as error:
        raise CheckpointError(f"cannot read {parent}: {error.strerror}; give a folder that you may read") from error
    found = [(step, path) for path in inside if (step := step_of(path)) is not None]
    # Of two for one step the one that was to be replaced comes second.
    return [path for _, path in sorted(found, key=lambda each: (each[0], each[1].name), reverse=True)]


def step_of(path: Path) -> int | None:
    """Return the step in a checkpoint's name, None for any other name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1] or match[2]) if match else None


def remove_checkpoint(path: Path) -> None:
    """Remove a folder; a half removed one is no checkpoint at any moment."""
    doomed = path.with_name(f".{path.name.lstrip('.')}.{uuid.uuid4().hex}{PARTIAL}")
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove what interrupted saves and removals have left; no save must be under way."""
    for path in parent.glob(f".step-*{PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


def key_of(kind: str, name: str, start: int) -> str:
    """Return the name of a slice in its file: what it is of, and its first element in the flattened whole.

    >>> key_of("exp_avg", "lm_head.weight", 4096)
    'exp_avg/lm_head.weight@4096'
    """
    return f"{kind}/{name}@{start}"


def parse_key(key: str) -> tuple[str, str, int]:
    """Return what `key_of` was given.

    >>> parse_key("exp_avg/lm_head.weight@4096")
    ('exp_avg', 'lm_head.weight', 4096)
    """
    rest, _, start = key.rpartition("@")
    kind, _, name = rest.partition("/")
    return kind, name, int(start)
