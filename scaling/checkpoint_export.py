"""A checkpoint as a model folder, in one process that has nothing to do with the run that saved it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scaling.adapters import merged
from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.inspection import checkpoints_at
from scaling.checkpoint.reader import CheckpointReader
from scaling.checkpoint.verify import verify
from scaling.data.tokenizer import tokenizer_for
from scaling.engines.state import BUFFER, WEIGHT, flat
from scaling.export import export_model
from scaling.models import InitialWeights, build_config, build_model, kind_of
from scaling.run_folder import CHECKPOINTS_FOLDER, CONFIG_FILE
from scaling.scalars import as_saved
from strategies.decision import Decision
from strategies.emit.files import PLAN_FILE
from strategies.load_model import resolve_model
from strategies.serialize import read_json

logger = logging.getLogger(__name__)


def export_checkpoint(where: Path, *, out: Path) -> Path:
    """Write the model of the latest whole checkpoint at ``where`` to ``out``; return the checkpoint's folder.

    The weights take their place in one model in host memory; masters are rounded to the format that was trained in.

    Raises:
        ScalingError: there is no whole checkpoint, the model's config.json is gone, or ``out`` cannot be written.
    """
    folder = _latest_whole(where)
    decision = read_json(Decision, folder / PLAN_FILE)
    config = build_config(resolve_model(decision.model))
    model = build_model(config, InitialWeights(folder=None), decision=decision, seed=0)
    with CheckpointReader(folder) as reader:
        fill(model, reader)
    state = as_saved(model, {name: tensor.detach() for name, tensor in model.state_dict().items()})
    export_model(model, merged(model, state), _tokenizer(folder, config), folder=out)
    return folder


@torch.no_grad()
def fill(model: nn.Module, reader: CheckpointReader) -> None:
    """Give a plain model the checkpoint's weights and buffers.

    Raises:
        CheckpointError: the checkpoint is of another model.
    """
    ours = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for (kind, name), entry in reader.entries.items():
        if kind not in (WEIGHT, BUFFER):
            continue
        if name not in ours or tuple(ours[name].shape) != tuple(entry.shape):
            raise CheckpointError(
                f"{reader.folder} has {kind} {name} of shape {tuple(entry.shape)}, which the model of its plan has "
                f"not; the model's config.json was changed since: put the old one back"
            )
        reader.copy_range(kind, name, 0, flat(ours[name]))


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
