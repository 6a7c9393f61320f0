"""Samples that come one after the other and are kept nowhere: a source that is read as it goes.

Every rank reads the whole stream and takes its own samples, so ranks need not talk to each other and none runs out
before another: where the stream ends it begins again, in the middle of a global batch if need be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar, final

import numpy as np

from scaling.data.errors import DataError

T = TypeVar("T")
SHUFFLE_BUFFER = 1000
"""Samples that are held in memory to draw from: a stream is shuffled no further than that."""


@final
class Stream(Generic[T]):
    """Items by their position in the run, which should rise: an earlier one is reached from the start again."""

    def __init__(
        self, items: Callable[[], Iterable[T]], *, seed: int | None, skips: int = 0, takes: int | None = None
    ) -> None:
        """``skips`` and ``takes``: which items of every pass are read. ``seed``: None keeps the stream's own order."""
        self._items, self._seed = items, seed
        self._skips, self._takes = skips, takes
        self._position = 0
        self._reader: Iterator[T] = iter(())
        self._started = False

    def at(self, position: int) -> T:
        """Return the item at ``position``.

        Raises:
            DataError: the stream has no item at all.
        """
        if not self._started or position < self._position:
            self._reader, self._position, self._started = self._endless(), 0, True
        for _ in range(position - self._position):
            next(self._reader)
        self._position = position + 1
        return next(self._reader)

    def _endless(self) -> Iterator[T]:
        epoch = 0
        while True:
            is_empty = True
            part = islice(self._items(), self._skips, None if self._takes is None else self._skips + self._takes)
            for item in part if self._seed is None else _shuffled(part, seed=self._seed, epoch=epoch):
                is_empty = False
                yield item
            if is_empty:
                raise DataError(f"the stream has no sample after the first {self._skips}; add data, or hold out less")
            epoch += 1


def _shuffled(items: Iterable[T], *, seed: int, epoch: int) -> Iterator[T]:
    """Yield the items, each drawn from the `SHUFFLE_BUFFER` next ones; another order in every pass."""
    random = np.random.default_rng([seed, epoch])
    buffer: list[T] = []
    for item in items:
        if len(buffer) < SHUFFLE_BUFFER:
            buffer.append(item)
            continue
        index = int(random.integers(SHUFFLE_BUFFER))
        chosen, buffer[index] = buffer[index], item
        yield chosen
    for index in random.permutation(len(buffer)):
        yield buffer[index]
