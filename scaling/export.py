"""The trained model as a folder that Hugging Face's ``from_pretrained`` opens, a tensor in memory at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scaling.adapters import choose_trained
from scaling.engines.base import Engine
from scaling.export_layout import live_tensors
from scaling.model_folder import ModelFolder
from scaling.models import auto_class
from scaling.ranks import together
from scaling.scalars import widen_scalars
from strategies.errors import ScalingError
from strategies.job import Job

MAX_SHARD_BYTES = 5 * 10**9
"""Of one file of weights where nobody says otherwise: what Hugging Face's libraries wrote for years."""
NamedTensors = Iterable[tuple[str, torch.Tensor]]
"""All of `live_tensors`, each valid until the next one is asked for."""


def shell_of(config: Any, *, dtype: torch.dtype, job: Job | None = None, generation: Any = None) -> Any:
    """Return the model of a configuration as it is trained, without its numbers.

    ``dtype``: of the folder to be written. ``generation``: the settings with which the model generates; None for those
    that follow from the configuration.
    """
    with torch.device("meta"):
        shell = auto_class(config).from_config(copy.deepcopy(config), dtype=dtype, attn_implementation="sdpa")
        widen_scalars(shell)
        if job is not None:
            choose_trained(shell, job)
    if generation is not None:
        shell.generation_config = generation
    return shell


def export_engine(
    engine: Engine, shell: Any, tokenizer: Any, *, folder: Path, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write the engine's model to ``folder``, which appears complete and checked or not at all; a collective.

    ``shell``: the same model by `shell_of`. ``tokenizer``: None for a model that reads no text.

    Raises:
        ExportError: the folder exists, cannot be written, or does not open as what was trained; on every rank.
    """
    written = ModelFolder(folder, shell, max_shard_bytes=max_shard_bytes) if engine.rank == 0 else None
    failure: ScalingError | None = None

    def finish() -> None:
        if failure is not None:
            raise failure
        if written is not None:
            written.finish(tokenizer)

    try:
        for name, tensor in _engine_tensors(engine):
            if written is not None and failure is None:  # a rank that has failed still takes part in gathering
                failure = _failure_of(partial(written.add, name, tensor))
        together(finish)
    except BaseException:
        if written is not None:
            written.abandon()
        raise


def export_tensors(
    tensors: NamedTensors, shell: Any, tokenizer: Any, *, folder: Path, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write tensors of any source to ``folder``, in one process; the rest is as with `export_engine`.

    Raises:
        ExportError: the folder exists, cannot be written, or does not open as what was given.
    """
    written = ModelFolder(folder, shell, max_shard_bytes=max_shard_bytes)
    try:
        for name, tensor in tensors:
            written.add(name, tensor)
        written.finish(tokenizer)
    except BaseException:
        written.abandon()
        raise


def _engine_tensors(engine: Engine) -> Iterator[tuple[str, torch.Tensor]]:
    yield from engine.gathered_parameters()
    parameters = dict(engine.model.named_parameters()).keys()
    yield from ((name, tensor) for name, tensor in live_tensors(engine.model).items() if name not in parameters)


def _failure_of(action: Callable[[], None]) -> ScalingError | None:
    try:
        action()
    except ScalingError as error:
        return error
    return None
