"""Which checkpoints stay: the latest ones, and besides them those with the lowest evaluation loss."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.manifest import Manifest, read_manifest
from scaling.checkpoint.names import find_checkpoints, remove_checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What became of the checkpoints that were to go."""

    removed: tuple[Path, ...]
    refused: tuple[Path, ...]
    """Those that the operating system would not remove."""


def prune(parent: Path, *, keep_last: int, keep_best: int) -> Pruned:
    """Remove the checkpoints that are neither among the last nor among the best; 0 last ones keeps all.

    Damaged ones are not counted and stay, for people to look at, until a later one takes their name.
    """
    whole = [(path, manifest) for path in find_checkpoints(parent) if (manifest := _manifest(path)) is not None]
    if keep_last == 0:
        return Pruned(removed=(), refused=())
    kept = {path for path, _ in [*whole[:keep_last], *_best(whole)[:keep_best]]}
    doomed = [path for path, _ in whole if path not in kept]
    refused = tuple(path for path in doomed if not _removed(path))
    return Pruned(removed=tuple(path for path in doomed if path not in refused), refused=refused)


def _removed(path: Path) -> bool:
    try:
        remove_checkpoint(path)
    except OSError as error:  # a run goes on: what cannot be removed only takes space
        logger.warning("cannot remove the checkpoint %s: %s", path, error.strerror)
        return False
    return True


def _best(whole: Sequence[tuple[Path, Manifest]]) -> list[tuple[Path, Manifest]]:
    """Return those that were evaluated, the lowest loss first; of equal ones the later."""
    evaluated = [(each[1].state.eval_loss, index, each) for index, each in enumerate(whole)]
    ranked = sorted((loss, index, each) for loss, index, each in evaluated if loss is not None)
    return [each for _, _, each in ranked]


def _manifest(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except CheckpointError:
        return None
