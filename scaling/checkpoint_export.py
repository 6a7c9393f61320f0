"""A checkpoint as a model folder, in one process that has nothing to do with the run that saved it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.inspection import checkpoints_at
from scaling.checkpoint.reader import CheckpointReader
from scaling.checkpoint.verify import verify
from scaling.data.tokenizer import tokenizer_for
from scaling.engines.state import BUFFER, WEIGHT
from scaling.export import MAX_SHARD_BYTES, export_tensors, shell_of
from scaling.export_layout import live_tensors
from scaling.model_folder import require_absent
from scaling.models import DTYPES, build_config, kind_of
from scaling.run_folder import CHECKPOINTS_FOLDER, CONFIG_FILE
from strategies.decision import Decision
from strategies.emit.files import PLAN_FILE
from strategies.load_model import ResolvedModel, resolve_model
from strategies.serialize import read_json

logger = logging.getLogger(__name__)


def export_checkpoint(
    where: Path, *, out: Path, dtype: torch.dtype | None = None, max_shard_bytes: int = MAX_SHARD_BYTES
) -> Path:
    """Write the model of the latest whole checkpoint at ``where`` to ``out``; return the checkpoint's folder.

    ``dtype``: of the weights; None for the one that was trained in, to which masters are rounded. A tensor is in memory
    at a time.

    Raises:
        ScalingError: there is no whole checkpoint, the model's config.json is gone, or ``out`` cannot be written.
    """
    require_absent(out)  # before all of a checkpoint is read
    folder = _latest_whole(where)
    decision = read_json(Decision, folder / PLAN_FILE)
    resolved = resolve_model(decision.model)
    config = build_config(resolved)
    shell = shell_of(
        config,
        dtype=dtype or DTYPES[decision.job.precision],
        job=decision.job,
        generation=generation_of(resolved),
    )
    with CheckpointReader(folder) as reader:
        _require_same_model(shell, reader)
        tokenizer = _tokenizer(folder, config)
        export_tensors(_tensors(shell, reader), shell, tokenizer, folder=out, max_shard_bytes=max_shard_bytes)
    return folder


def generation_of(resolved: ResolvedModel) -> Any:
    """Return the settings of generation that come with the model's folder, None where there are none."""
    if resolved.folder is None or not (resolved.folder / transformers.utils.GENERATION_CONFIG_NAME).is_file():
        return None
    return transformers.GenerationConfig.from_pretrained(resolved.folder)


def _tensors(shell: Any, reader: CheckpointReader) -> Iterator[tuple[str, torch.Tensor]]:
    parameters = dict(shell.named_parameters()).keys()
    for name, empty in live_tensors(shell).items():
        tensor = torch.empty(empty.shape, dtype=empty.dtype)
        reader.copy_range(WEIGHT if name in parameters else BUFFER, name, 0, tensor.view(-1))
        yield name, tensor


def _require_same_model(shell: Any, reader: CheckpointReader) -> None:
    ours = {name: tuple(tensor.shape) for name, tensor in live_tensors(shell).items()}
    theirs = {name: tuple(entry.shape) for (kind, name), entry in reader.entries.items() if kind in (WEIGHT, BUFFER)}
    if differing := [name for name in theirs | ours if theirs.get(name) != ours.get(name)]:
        name = differing[0]
        raise CheckpointError(
            f"{reader.folder} has {name} of shape {theirs.get(name)}, and the model of its plan of shape "
            f"{ours.get(name)}; the model's config.json was changed since: put the old one back"
        )


def _latest_whole(where: Path) -> Path:
    found = checkpoints_at(where, inside=CHECKPOINTS_FOLDER)
    for folder in found[:-1]:
        try:
            verify(folder)
        except CheckpointError as error:
            logger.warning("skipped a checkpoint: %s", error)
            continue
        return folder
    verify(found[-1])
    return found[-1]


def _tokenizer(folder: Path, config: Any) -> Any:
    """Return the tokenizer that the run was configured with, None for a model that reads no text."""
    return tokenizer_for(json.loads((folder / CONFIG_FILE).read_text())["tokenizer"], kind_of(config))
