"""Traces of one setting as events whose bytes are forms: the material that moments are read off."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.form_families import TASKS, Shape, depth_keys, random_shape
from benchmarks.form_fit import FEATURES, Fitter, UnexplainedBytesError
from benchmarks.form_losses import loss_function
from benchmarks.form_variants import windowed
from scaling.adapters import choose_trained
from scaling.ownership import Cause
from scaling.storage_log import EventKind
from scaling.trace import (
    Recompute,
    SingleDevice,
    TraceLog,
    TraceOptions,
    TracePrecision,
    image_batch,
    model_factory,
    token_batch,
)
from scaling.trace.log import CAUSES, op_names
from scaling.trace.patching import patched
from scaling.trace.step import trace_step
from strategies.estimate import Phase
from strategies.job import Job, LossImplementation
from strategies.model_spec import TaskKind

DEPTH = 3
NUM_SHAPES = 3
RANKS = (23, 29, 37)
"""Of adapters, by shape."""
BATCHES = (5, 2, 3)
"""Odd first: that shape tells events apart by their bytes, and twice the bytes of one format are those of another."""
PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.EVALUATION)
PARTS = ("activations", "recomputed_block", "logits", "gradients")
"""What is told apart; the last holds gradients of weights at the moment they are made."""
_PART_OF = {
    Cause.ACTIVATIONS: 0,
    Cause.STEP_TEMPORARIES: 0,
    Cause.RECOMPUTED_BLOCK: 1,
    Cause.LOGITS: 2,
    Cause.GRADIENTS: 3,
}
COLUMN = {name: index for index, name in enumerate(FEATURES)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """What is traced, but for the shape."""

    family: str
    values: Mapping[str, Any]
    """Keys of config.json that choose the variant, and ``grouping``."""
    precision: TracePrecision
    kernels: Any
    attention: str
    """As transformers calls the implementation."""
    is_windowed: bool = False
    """Whether every layer has a window shorter than the sequence."""
    checkpointing: Recompute
    loss: LossImplementation
    stack: str | None = None
    """Which of two stacks is looked at."""
    by_stage3: bool = False
    """Whether linear layers are those that DeepSpeed puts in place of torch's under stage 3."""
    batch: int | None = None
    """Samples, where forms hold for that number alone."""
    job: Job | None = None
    """What is trained, where that is not everything."""


class Key(NamedTuple):
    """What identifies an event."""

    kind: int
    op: str
    num_bytes: int
    cause: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """One phase: what lives after every event, by part and feature."""

    keys: Sequence[Key]
    levels: Any
    """(event, part, feature), bytes per feature."""
    deeper: Sequence[Key]
    """The same phase with one block more."""

    def is_allocation(self, index: int) -> bool:
        return self.keys[index].kind == EventKind.ALLOCATE


def traced(setting: Setting) -> dict[Phase, Events]:
    """Return the phases of one step and an evaluation, as forms.

    Raises:
        UnexplainedBytesError: a storage is no product of sizes.
    """
    shapes = [
        random_shape(setting.family, setting.values, seed=seed, batch=setting.batch or BATCHES[seed])
        for seed in range(NUM_SHAPES)
    ]
    settings = [_with_rank(setting, rank) for rank in RANKS]
    logs = [trace_shape(each, shape, num_layers=DEPTH) for each, shape in zip(settings, shapes, strict=True)]
    more = {"num_layers": DEPTH, "deeper": setting.stack} if setting.stack else {"num_layers": DEPTH + 1}
    deeper = trace_shape(settings[0], shapes[0], **more)
    ranks = RANKS if setting.job and setting.job.lora else (0,) * NUM_SHAPES
    fitter = Fitter([{**sizes(shape), "R": rank} for shape, rank in zip(shapes, ranks, strict=True)])
    levels = _levels(logs, fitter)
    keys, deeper_keys = _keys(logs[0]), _keys(deeper)
    found: dict[Phase, Events] = {}
    deep = {section.phase: (first, end) for section, first, end in deeper.ranges()}
    for section, first, end in logs[0].ranges():
        if section.phase in PHASES:
            start, stop = deep[section.phase]
            found[section.phase] = Events(
                keys=keys[first:end], levels=levels[first:end], deeper=deeper_keys[start:stop]
            )
    return found


def _with_rank(setting: Setting, rank: int) -> Setting:
    """Return the setting with adapters, if it has any, of another rank."""
    job = setting.job
    if job is None or job.lora is None:
        return setting
    return replace(setting, job=replace(job, lora=replace(job.lora, rank=rank)))


def trace_shape(
    setting: Setting, shape: Shape, *, num_layers: int, every: int = 1, deeper: str | None = None
) -> TraceLog:
    """Return the log of one step and an evaluation; the stack called ``deeper`` has one block more."""
    from transformers import AutoConfig

    task = TASKS.get(setting.family, TaskKind.CAUSAL_LM)
    values = windowed(setting.family, shape.values, num_layers=num_layers) if setting.is_windowed else shape.values
    depth = depth_keys(setting.family, num_layers, deeper=deeper)
    config = AutoConfig.for_model(setting.family, **{**values, **depth})
    if task is TaskKind.IMAGE_CLASSIFICATION:
        batch = image_batch(config, micro_batch_size=shape.batch)
    else:
        batch = token_batch(micro_batch_size=shape.batch, seq_len=shape.seq, task=task)
    options = TraceOptions(
        precision=setting.precision,
        activation_checkpointing=setting.checkpointing,
        checkpoint_every=every,
        kernels=setting.kernels,
        num_steps=1,
        evaluate=setting.checkpointing is Recompute.NONE,
    )
    with warnings.catch_warnings(), _linear_layers(by_stage3=setting.by_stage3):
        warnings.simplefilter("ignore")
        model = model_factory(config, task=task, attention=setting.attention)
        if setting.job:
            model = partial(_in_part, model, setting.job)
        return trace_step(model, batch, options, loss=loss_function(setting.loss, task), engine=WITHOUT_STEP)


def _in_part(make: Callable[[], nn.Module], job: Job) -> nn.Module:
    model = make()
    choose_trained(model, job)
    return model


@contextmanager
def _linear_layers(*, by_stage3: bool) -> Iterator[None]:
    """Compute linear layers as stage 3 does, if asked to: no copy of a weight may outlive its use (zero/linear.py)."""
    if not by_stage3:
        yield
        return
    from scaling.engines.deepspeed import import_deepspeed

    import_deepspeed(torch.device("cpu"))
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    with patched(torch.nn.functional, "linear", zero3_linear_wrap):
        yield


def _keys(log: TraceLog) -> list[Key]:
    names = op_names(log)
    causes = log.cause[log.storage].tolist()
    return [
        Key(kind, name, change, cause)
        for kind, name, change, cause in zip(log.kind.tolist(), names, log.change_bytes.tolist(), causes, strict=True)
    ]


def _levels(logs: Sequence[TraceLog], fitter: Fitter) -> Any:
    """Return what lives after every event: activations of all kinds, and the gradient an event has just made."""
    first = logs[0]
    forward_end = next(end for section, _, end in first.ranges() if section.phase is Phase.FORWARD)
    for other in logs[1:]:
        same = np.array_equal(first.kind, other.kind) and np.array_equal(first.storage, other.storage)
        if not (same and np.array_equal(first.cause[first.storage], other.cause[other.storage])):
            raise UnexplainedBytesError("the traces of three shapes differ in more than their bytes")
    changes = np.stack([log.change_bytes for log in logs], axis=1).tolist()
    levels = np.zeros((first.num_events, len(PARTS), len(FEATURES)))
    now = np.zeros((len(PARTS), len(FEATURES)))
    for index, (kind, storage) in enumerate(zip(first.kind.tolist(), first.storage.tolist(), strict=True)):
        part = _PART_OF.get(CAUSES[first.cause[storage]])
        if part == 3 and index < forward_end:
            part = 0  # a gradient made in forward waits for backward like an activation
        if part is not None and any(changes[index]):
            if part == 3:
                now[3] = 0
            if part != 3 or kind == EventKind.ALLOCATE:
                sign = -1 if changes[index][0] < 0 else 1
                for name, coefficient in fitter.form(tuple(abs(each) for each in changes[index])).items():
                    now[part, COLUMN[name]] += sign * float(coefficient)
            else:
                continue
        levels[index] = now
        if kind == EventKind.ALLOCATE and part != 3:
            now[3] = 0
            levels[index, 3] = 0
    return levels


class _NoStep(torch.optim.Optimizer):
    """Leaves the weights as they are: the step is not looked at."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        pass


WITHOUT_STEP = SingleDevice(optimizer=_NoStep)


def sizes(shape: Shape) -> Mapping[str, int]:
    """Return the sizes of a shape with batch and length."""
    return {**shape.sizes, "B": shape.batch, "S": shape.seq}
