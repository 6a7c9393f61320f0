"""Which samples are trained on when: a pure function of seed, epoch and position, the same for every world size.

The order of an epoch is a keyed permutation that is computed for single positions: nothing is drawn in sequence, so
any step is reached at once and no permutation is stored (a billion samples cost no memory).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from scaling.data.errors import DataError
from scaling.data.permutation import permute

if TYPE_CHECKING:
    from numpy.typing import NDArray


BLOCK = 4096
"""Positions whose samples are worked out at once, in 2 ms; eight alone take 0.4 ms, in every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The samples of one micro batch."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Of each sample in the run, counted from its start: what is random about a sample (masks) depends on it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """An endless run over the samples, each epoch in another order, cut into global batches.

    A global batch that reaches the end of an epoch goes on with the next one: no sample is dropped, none comes twice
    in an epoch, and every optimizer step has the same number of samples.
    """

    num_samples: int
    global_batch_size: int
    """Samples per optimizer step, over all ranks."""
    seed: int

    def __post_init__(self) -> None:
        if self.num_samples < 1 or self.global_batch_size < 1:
            raise DataError(
                f"num_samples={self.num_samples} and global_batch_size={self.global_batch_size} must be above zero"
            )
        if self.num_samples < self.global_batch_size:
            raise DataError(
                f"global_batch_size={self.global_batch_size} is more than the data: num_samples={self.num_samples} for "
                f"training; add data, shorten seq_len, or take at most global_batch_size={self.num_samples}"
            )
        if not 0 <= self.seed < 1 << 64:
            raise DataError(f"seed={self.seed} must be at least 0 and below 2**64")

    def ids(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``start`` to ``start + count`` of the run, shape (count,).

        ``start`` is the number of samples consumed before: the cursor to keep in a checkpoint. It stays right when a
        later part of the run uses another global batch size or world size.
        """
        parts = []
        end = start + count
        while start < end:
            epoch, offset = divmod(start, self.num_samples)
            block, first = divmod(offset, BLOCK)
            ids = _block(block, size=self.num_samples, seed=self.seed, epoch=epoch)[first : first + end - start]
            parts.append(ids)
            start += len(ids)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def global_batch(self, step: int) -> NDArray[np.int64]:
        """Return the sample ids of optimizer step ``step``, counted from 0, shape (global_batch_size,)."""
        return self.ids(step * self.global_batch_size, self.global_batch_size)

    def rank_draws(self, step: int, *, rank: int, world_size: int, micro_batch_size: int) -> list[Draw]:
        """Return each micro batch of this rank in optimizer step ``step``.

        The global batch is cut into micro batches, dealt to the ranks in turn.

        Raises:
            DataError: the global batch is not a whole number of micro batches on every rank.
        """
        positions = rank_positions(
            step,
            global_batch_size=self.global_batch_size,
            rank=rank,
            world_size=world_size,
            micro_batch_size=micro_batch_size,
        )
        first, ids = step * self.global_batch_size, self.global_batch(step)
        return [Draw(ids=ids[each - first], positions=each) for each in positions]

    def rank_micro_batches(
        self, step: int, *, rank: int, world_size: int, micro_batch_size: int
    ) -> list[NDArray[np.int64]]:
        """Return the ids of `rank_draws`."""
        draws = self.rank_draws(step, rank=rank, world_size=world_size, micro_batch_size=micro_batch_size)
        return [draw.ids for draw in draws]

    def epoch(self, step: int) -> float:
        """Return the epochs consumed before optimizer step ``step``."""
        return step * self.global_batch_size / self.num_samples

    def num_steps(self, epochs: float) -> int:
        """Return the fewest optimizer steps that cover ``epochs``; the last may take samples of the following epoch."""
        samples = math.ceil(round(epochs * self.num_samples, 6))  # 1.1 * 10 is 11.000000000000002
        return -(-samples // self.global_batch_size)


@lru_cache(maxsize=4)
def _block(block: int, *, size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the samples at the positions of one block of an epoch; the last one is shorter. Not to be written to."""
    positions = np.arange(block * BLOCK, min(size, (block + 1) * BLOCK), dtype=np.uint64)
    return permute(positions, size=size, seed=seed, epoch=epoch).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOrder:
    """Samples as a stream brings them: the id of a sample is its position. The stream begins again where it ends."""

    global_batch_size: int
    num_samples: int = 0
    """Nobody knows how many."""

    def rank_draws(self, step: int, *, rank: int, world_size: int, micro_batch_size: int) -> list[Draw]:
        """Return each micro batch of this rank in optimizer step ``step``, dealt as `SampleOrder` deals them."""
        found = rank_positions(
            step,
            global_batch_size=self.global_batch_size,
            rank=rank,
            world_size=world_size,
            micro_batch_size=micro_batch_size,
        )
        return [Draw(ids=positions, positions=positions) for positions in found]

    def epoch(self, step: int) -> float:
        """Return 0: nobody knows how long a stream is."""
        return 0.0


def rank_positions(
    step: int, *, global_batch_size: int, rank: int, world_size: int, micro_batch_size: int
) -> list[NDArray[np.int64]]:
    """Return the positions in the run of this rank's samples in optimizer step ``step``, micro batch by micro batch.

    Raises:
        DataError: the global batch is not a whole number of micro batches on every rank.
    """
    samples_per_pass = world_size * micro_batch_size
    if not 0 <= rank < world_size or micro_batch_size < 1 or global_batch_size % samples_per_pass:
        raise DataError(
            f"global_batch_size={global_batch_size} is not a multiple of micro_batch_size={micro_batch_size} "
            f"* world_size={world_size} (rank={rank}); choose sizes that divide it"
        )
    positions = np.arange(step * global_batch_size, (step + 1) * global_batch_size, dtype=np.int64)
    return _deal(positions, rank=rank, world_size=world_size, micro_batch_size=micro_batch_size)


def evaluation_micro_batches(
    num_samples: int, *, rank: int, world_size: int, micro_batch_size: int
) -> list[NDArray[np.int64]]:
    """Return the ids of each evaluation micro batch of this rank: over all ranks every sample once, in order.

    The list has the same length on every rank, since a forward pass may be collective (ZeRO-3). Its last arrays may be
    short or empty; run any sample with weight 0 for an empty one.
    """
    num_passes = -(-num_samples // (micro_batch_size * world_size))
    batches = _deal(np.arange(num_samples), rank=rank, world_size=world_size, micro_batch_size=micro_batch_size)
    return batches + [np.empty(0, dtype=np.int64)] * (num_passes - len(batches))


def _deal(ids: NDArray[np.int64], *, rank: int, world_size: int, micro_batch_size: int) -> list[NDArray[np.int64]]:
    starts = range(rank * micro_batch_size, len(ids), world_size * micro_batch_size)
    return [ids[start : start + micro_batch_size] for start in starts]
