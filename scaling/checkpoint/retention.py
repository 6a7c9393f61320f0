"""Which checkpoints stay: the latest ones, and besides them those with the lowest evaluation loss."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.manifest import Manifest, read_manifest
from scaling.checkpoint.names import find_checkpoints, remove_checkpoint

logger = logging.getLogger(__name__)


def prune(parent: Path, *, keep_last: int, keep_best: int) -> tuple[Path, ...]:
    """Remove and return the checkpoints that are neither among the last nor among the best; 0 last ones keeps all.

    Damaged ones are not counted and stay, for people to look at, until a later one takes their name.
    """
    whole = [(path, manifest) for path in find_checkpoints(parent) if (manifest := _manifest(path)) is not None]
    if keep_last == 0:
        return ()
    kept = {path for path, _ in [*whole[:keep_last], *_best(whole)[:keep_best]]}
    doomed = tuple(path for path, _ in whole if path not in kept)
    for path in doomed:
        try:
            remove_checkpoint(path)
        except OSError as error:  # the run goes on: what cannot be removed only takes space
            logger.warning("cannot remove the checkpoint %s: %s", path, error)
    return doomed


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
