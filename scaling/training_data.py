"""Which batches a rank sees: samples in their order, cut by micro batch and rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scaling.batch import Batch
from scaling.data.feed import MicroBatchFeed, Order
from scaling.data.order import Draw, SampleOrder, StreamOrder, evaluation_micro_batches
from scaling.data.samples import Samples
from scaling.losses import IGNORED_LABEL
from scaling.models import kind_of
from scaling.sample_sources import Found, open_samples
from scaling.tasks.base import Task
from scaling.tasks.build import build_task
from scaling.train_config import TrainConfig
from strategies.decision import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Everything about samples that one rank needs, before any process group exists."""

    task: Task
    tokenizer: Any
    """None for a model that reads no text."""
    train: Samples
    held_out: Samples | None
    order: Order
    feed: MicroBatchFeed
    micro_batch_size: int
    num_eval_samples: int
    content_hash: str
    """Of the data: the same data and tokenizer, the same text."""
    seq_len: int
    """Positions of a sample at most."""
    label_names: tuple[str, ...] = ()
    """Of the classes, by number; empty where there are none."""

    def micro_batches(self, step: int, *, rank: int, world_size: int) -> list[Batch]:
        """Return this rank's micro batches of optimizer step ``step``, counted from 0."""
        return self.feed.take(step, rank=rank, world_size=world_size)

    def evaluation_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """Yield this rank's held-out batches: over all ranks every sample once, equally many batches on each."""
        assert self.held_out is not None, "evaluation was not configured"
        for ids in evaluation_micro_batches(
            self.num_eval_samples, rank=rank, world_size=world_size, micro_batch_size=self.micro_batch_size
        ):
            # A forward takes at least one row, and as many as on every other rank where samples are compared.
            missing = self.micro_batch_size - len(ids) if self.task.couples_samples else int(not len(ids))
            filled = np.concatenate([ids, np.zeros(missing, dtype=np.int64)])
            batch = self.held_out.batch(Draw(ids=filled, positions=filled))
            yield _without_rows(batch, self.task, first=len(ids)) if missing else batch


def open_training_data(
    config: TrainConfig, decision: Decision, *, model_config: Any, show_progress: bool, pins: bool = False
) -> TrainingData:
    """Return the data of a run, tokenised now if no earlier run has done it.

    ``model_config``: transformers' configuration of the model. ``pins``: whether batches go to a GPU.

    Raises:
        ConfigError: the task, or the tokenizer, is not the model's.
        DataError: the data cannot be read or are too few.
    """
    job = decision.job
    task = build_task(config.task, kind_of(model_config), loss=job.loss, label_smoothing=config.label_smoothing)
    found = open_samples(config, decision, model_config=model_config, show_progress=show_progress)
    order = _order(found, config, global_batch_size=job.global_batch_size)
    return TrainingData(
        task=task,
        tokenizer=found.tokenizer,
        train=found.train,
        held_out=found.held_out,
        order=order,
        feed=MicroBatchFeed(
            found.train,
            order,
            micro_batch_size=decision.plan.micro_batch_size,
            num_workers=config.num_workers,
            pins=pins,
        ),
        micro_batch_size=decision.plan.micro_batch_size,
        num_eval_samples=min(len(found.held_out), config.eval_batches * job.global_batch_size) if found.held_out else 0,
        content_hash=found.content_hash,
        seq_len=job.seq_len,
        label_names=found.label_names,
    )


def _order(found: Found, config: TrainConfig, *, global_batch_size: int) -> Order:
    if config.streaming:
        return StreamOrder(global_batch_size=global_batch_size)
    return SampleOrder(num_samples=len(found.train), global_batch_size=global_batch_size, seed=config.seed)


def _without_rows(batch: Batch, task: Task, *, first: int) -> Batch:
    """Return the batch with the rows from ``first`` on ignored: they only fill up."""
    labels = batch.labels.clone()
    labels[first:] = IGNORED_LABEL
    return replace(batch, labels=labels, num_loss_units=task.num_units(labels))
