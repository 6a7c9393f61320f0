"""Out of memory in a step: every rank does the same global batch again in smaller micro batches.

A rank that runs out of memory must not leave the others waiting in a collective. It frees what it holds and goes
through the failed pass once more with a single sample, taking part in those collectives that it has not begun yet
(`silence`), and likewise through the rest of its micro batches. Then the hosts agree that somebody failed, all ranks
drop the gradients, which are of no use, and begin the step again. Where nothing fails the agreement is all that a step
costs.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch

from scaling.batch import Batch, weightless
from scaling.engines.base import Engine
from scaling.loop import add_gradient
from scaling.recovery.failure import Failure
from scaling.recovery.progress import Progress
from scaling.recovery.silence import Counts, SilentAtFirst, collectives_begun, collectives_since
from scaling.tasks.base import Task

logger = logging.getLogger(__name__)


class Agreement(Protocol):
    """What the hosts of all ranks say to each other once a step."""

    def any_failed(self, failed: bool) -> bool:
        """Return whether any rank failed; a collective."""

    def failures(self, mine: Failure | None) -> Sequence[Failure]:
        """Return the failures of all ranks, by rank; a collective."""


@dataclass(slots=True, kw_only=True)
class _Attempt:
    loss_sum: torch.Tensor
    failure: Failure | None = None


@final
class Ladder:
    """Adds the gradients of a step, with micro batches that are halved whenever they turn out too large."""

    def __init__(self, agreement: Agreement, *, micro_batch_size: int, progress: Progress) -> None:
        self._agreement = agreement
        self._progress = progress
        self._planned_size = micro_batch_size
        self.micro_batch_size = micro_batch_size
        """Samples in one pass: the plan's, then half of it, and so on; never more again."""

    def cut(self, batches: Iterable[Batch], task: Task) -> Iterator[Batch]:
        """Yield the samples of batches of the plan's size in passes of the present size."""
        return (piece for batch in batches for piece in self._pieces(batch, task, before=self._planned_size))

    def add_gradients(self, engine: Engine, micro_batches: Sequence[Batch], weight: torch.Tensor) -> torch.Tensor:
        """Add the gradients of this rank's micro batches as `loop.add_gradients` does, again where memory ran out.

        Raises:
            torch.OutOfMemoryError: no smaller micro batch is possible, or the engine cannot begin a step again; on the
                ranks that failed. The others wait for them until they are told.
        """
        while True:
            attempt = self._attempt(engine, micro_batches, weight)
            self._progress.mark("agreeing on the step")
            if not self._agreement.any_failed(attempt.failure is not None):
                self._progress.mark("optimizer step")
                return attempt.loss_sum
            before = self._step_down(engine, self._agreement.failures(attempt.failure))
            micro_batches = [
                piece for batch in micro_batches for piece in self._pieces(batch, engine.task, before=before)
            ]

    def _attempt(self, engine: Engine, micro_batches: Sequence[Batch], weight: torch.Tensor) -> _Attempt:
        attempt = _Attempt(loss_sum=engine.zero_scalar())
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            self._progress.mark(f"micro batch {index + 1} of {len(micro_batches)}")
            before = collectives_begun()
            if attempt.failure is None:
                try:
                    attempt.loss_sum += add_gradient(engine, batch, weight, is_last=is_last)
                    continue
                except torch.OutOfMemoryError as error:
                    if not self._can_keep_up(engine):
                        raise
                    attempt.failure = Failure.of(error, rank=engine.rank, device=engine.device)
                # Outside of the except clause, where the error would still hold the tensors of the failed pass.
                engine.abandon_pass()
                free_memory()
            _keep_up(engine, batch, weight, is_last=is_last, begun=collectives_since(before))
        return attempt

    def _can_keep_up(self, engine: Engine) -> bool:
        """Whether a single sample needs less than what has just failed, and smaller micro batches mean the same."""
        return engine.can_repeat_steps and not engine.task.couples_samples and self.micro_batch_size > 1

    def _step_down(self, engine: Engine, failures: Sequence[Failure]) -> int:
        """Halve the micro batch on every rank; return its size before."""
        engine.drop_gradients()
        free_memory()
        before = self.micro_batch_size
        self.micro_batch_size = -(-before // 2)
        logger.warning(
            "%s: the step is done again, and the run goes on, with micro_batch_size=%d instead of %d and more "
            "accumulation: the same global batch, the same loss",
            "; ".join(map(str, failures)),
            self.micro_batch_size,
            before,
        )
        return before

    def _pieces(self, batch: Batch, task: Task, *, before: int) -> Iterable[Batch]:
        """Yield passes of the present size; their number depends on ``before`` alone and is the same on all ranks."""
        size = self.micro_batch_size
        if size == before:
            yield batch
            return
        for first in range(0, before, size):
            piece = _rows(batch, task, first=first, end=first + size)
            yield piece if piece.num_samples else weightless(_rows(batch, task, first=0, end=1))


def free_memory() -> None:
    """Give back what nothing refers to any more, also from the caching allocator."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _keep_up(engine: Engine, batch: Batch, weight: torch.Tensor, *, is_last: bool, begun: Counts) -> None:
    """Take part in the collectives of a pass that this rank has no memory for."""
    if engine.data_parallel_size == 1:
        return
    one_sample = weightless(_rows(batch, engine.task, first=0, end=1))
    with SilentAtFirst(begun):
        add_gradient(engine, one_sample, weight, is_last=is_last)


def _rows(batch: Batch, task: Task, *, first: int, end: int) -> Batch:
    labels = batch.labels[first:end]
    return Batch(
        inputs={name: tensor[first:end] for name, tensor in batch.inputs.items()},
        labels=labels,
        num_loss_units=task.num_units(labels),
    )
