"""Putting a checkpoint into an engine, whatever strategy and number of ranks wrote it and will go on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.manifest import ANOTHER
from scaling.checkpoint.random_states import restore_random_states
from scaling.checkpoint.reader import CheckpointReader
from scaling.engines.base import Engine
from scaling.engines.state import BUFFER, WEIGHT, StateSlice

logger = logging.getLogger(__name__)


def restore(engine: Engine, reader: CheckpointReader) -> None:
    """Fill the engine from the checkpoint; every rank must call this, and its own ranges are all that it reads.

    Raises:
        CheckpointError: the checkpoint is of another model or optimizer; the engine must not be used then.
    """
    manifest = reader.manifest
    _require_same_model(engine, reader)
    if reader.entries.keys() > _weights(reader):  # saved before the first step there are no moments
        engine.create_moments()
    slices = list(engine.state_slices())
    _require_same_moments(slices, reader)
    _warn_of_formats(slices, reader)
    with torch.no_grad():
        for each in slices:
            reader.copy_range(each.kind, each.name, each.start, each.tensor)
    engine.state_restored()
    engine.load_update_state(manifest.updates)


def restore_random(engine: Engine, reader: CheckpointReader, *, seed: int) -> None:
    """Go on drawing random numbers as the ranks of the checkpoint would; with another number of ranks start anew.

    ``seed``: of this rank; the same at the same step of every run.
    """
    if reader.manifest.world_size == engine.data_parallel_size:
        restore_random_states(reader.random_states(engine.rank), engine.device)
    else:
        torch.manual_seed(seed)


SAMPLES_DEPEND_ON = "which depends on --data, --tokenizer, --eval-every and --eval-fraction"


def require_identity(identity: Mapping[str, str], found: Mapping[str, str], folder: Path) -> None:
    """Refuse to go on from a checkpoint of other data or another order of them.

    Raises:
        CheckpointError: names every fact that differs, with both values.
    """
    differing = [
        f"{name}={identity.get(name)} (checkpoint: {found.get(name)})"
        for name in sorted(identity.keys() | found.keys())
        if identity.get(name) != found.get(name)
    ]
    if differing:
        # What a user sets is another thing than what differs: held-out samples are not trained on.
        hint = f" ({SAMPLES_DEPEND_ON})" if any(each.startswith("num_samples=") for each in differing) else ""
        raise CheckpointError(
            f"{folder} is of another run: {', '.join(differing)}{hint}; give the values it was made with, or start "
            f"anew with --resume none"
        )


def _require_same_model(engine: Engine, reader: CheckpointReader) -> None:
    ours = {(each.kind, each.name): each.shape for each in engine.state_slices() if each.kind in (WEIGHT, BUFFER)}
    theirs = {key: tuple(entry.shape) for key, entry in reader.entries.items() if key[0] in (WEIGHT, BUFFER)}
    problems = [f"it has no {kind} {name}" for kind, name in sorted(ours.keys() - theirs.keys())]
    problems += [f"its {kind} {name} is not in the model" for kind, name in sorted(theirs.keys() - ours.keys())]
    problems += [
        f"{kind} {name} has shape {theirs[kind, name]} and the model's {ours[kind, name]}"
        for kind, name in sorted(ours.keys() & theirs.keys())
        if ours[kind, name] != theirs[kind, name]
    ]
    if problems:
        raise CheckpointError(f"{reader.folder} is of another model: {_first(problems)}; {ANOTHER}")


def _require_same_moments(slices: Iterable[StateSlice], reader: CheckpointReader) -> None:
    ours = {(each.kind, each.name) for each in slices} - _weights(reader)
    theirs = reader.entries.keys() - _weights(reader)
    problems = [f"it has no {kind} of {name}" for kind, name in sorted(ours - theirs)]
    problems += [f"this run has no {kind} of {name}" for kind, name in sorted(theirs - ours)]
    if problems:
        raise CheckpointError(f"{reader.folder} is of another optimizer: {_first(problems)}; {ANOTHER}")


def _weights(reader: CheckpointReader) -> set[tuple[str, str]]:
    """Return what the checkpoint has of the model itself, which is the same set as the engine's."""
    return {key for key in reader.entries if key[0] in (WEIGHT, BUFFER)}


def _warn_of_formats(slices: Iterable[StateSlice], reader: CheckpointReader) -> None:
    """Say once that numbers are rounded, or widened without gaining digits, and so differ from the run that saved."""
    for each in slices:
        saved, kept = reader.entries[each.kind, each.name].dtype, str(each.tensor.dtype).removeprefix("torch.")
        if saved != kept:
            logger.warning(
                "%s has %s %s in %s, and this run keeps it in %s", reader.folder, each.kind, each.name, saved, kept
            )
            return


def _first(problems: list[str]) -> str:
    return "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
