"""`MicroBatchFeed`: a rank's micro batches, step after step, made ahead of time by other processes where wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, final

import torch
from torch.utils.data import DataLoader, Dataset

from scaling.batch import Batch
from scaling.data.order import Draw
from scaling.data.samples import Samples

AHEAD_PER_WORKER = 4
"""Micro batches that a worker makes before they are asked for."""


class Order(Protocol):
    """Which samples come when: `SampleOrder` or `StreamOrder`."""

    @property
    def global_batch_size(self) -> int: ...

    @property
    def num_samples(self) -> int: ...

    def rank_draws(self, step: int, *, rank: int, world_size: int, micro_batch_size: int) -> list[Draw]: ...

    def epoch(self, step: int) -> float: ...


@final
class MicroBatchFeed:
    """Gives the same batches whatever the number of workers: what is in one is a function of its draw alone."""

    def __init__(self, samples: Samples, order: Order, *, micro_batch_size: int, num_workers: int, pins: bool) -> None:
        """``pins``: whether batches are put in page-locked memory, which only copies to a GPU gain by."""
        self._samples = samples
        self._order = order
        self._micro_batch_size = micro_batch_size
        self._num_workers = num_workers
        self._pins = pins
        self._next_step = -1
        self._batches: Iterator[Batch] = iter(())

    def take(self, step: int, *, rank: int, world_size: int) -> list[Batch]:
        """Return the micro batches of ``step``; steps in turn are read ahead, any other begins anew."""
        num_batches = self._order.global_batch_size // (self._micro_batch_size * world_size)
        if step != self._next_step:
            self._batches = self._from(step, rank=rank, world_size=world_size)
        self._next_step = step + 1
        return [next(self._batches) for _ in range(num_batches)]

    def close(self) -> None:
        """End the workers."""
        self._batches, self._next_step = iter(()), -1

    def _from(self, step: int, *, rank: int, world_size: int) -> Iterator[Batch]:
        draws = self._draws(step, rank=rank, world_size=world_size)
        if not self._num_workers and not self._pins:
            return (self._samples.batch(draw) for draw in draws)
        loader: Any = DataLoader(
            _ByDraw(self._samples),
            sampler=_Once(draws),
            batch_size=None,  # a draw is a whole micro batch
            num_workers=self._num_workers,
            prefetch_factor=AHEAD_PER_WORKER if self._num_workers else None,
            pin_memory=self._pins,
            # Not the one that dropout draws from: a resumed run starts the loader, and would draw, once more.
            generator=torch.Generator(),
            collate_fn=_same,
            worker_init_fn=_start_worker,
        )
        return iter(loader)

    def _draws(self, step: int, *, rank: int, world_size: int) -> Iterator[Draw]:
        while True:
            yield from self._order.rank_draws(
                step, rank=rank, world_size=world_size, micro_batch_size=self._micro_batch_size
            )
            step += 1


class _ByDraw(Dataset[Batch]):
    """Samples as torch's loader asks for them."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __getitem__(self, draw: Draw) -> Batch:
        return self._samples.batch(draw)


class _Once:
    """An iterator as torch's loader wants one: something that is iterated over."""

    def __init__(self, draws: Iterator[Draw]) -> None:
        self._draws = draws

    def __iter__(self) -> Iterator[Draw]:
        return self._draws


def _same(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    """Keep a worker to one thread: ranks share the cores, and a tokenizer's threads do not survive a fork."""
    import os

    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
