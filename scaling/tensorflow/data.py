"""The samples of a run as a `tf.data` pipeline: the same store, the same order and the same shares as PyTorch's ranks.

Micro batches are read by several calls at once, put together to what a replica computes in a step, and made ahead of
the step that needs them. What is in a batch depends on none of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scaling.data.order import Draw, evaluation_micro_batches
from scaling.data.samples import Samples
from scaling.losses import IGNORED_LABEL
from scaling.tensorflow.step_batch import StepBatch
from scaling.training_data import TrainingData

FILLING_ID = 0
"""Of tokens that only fill up: they have no label, and no earlier position sees them."""
ENDLESS = 2**62
"""Micro batches: more than any run reads."""
AHEAD = 2
"""Steps made before they are asked for."""

Tokens = NDArray[np.int32]


def training_steps(
    data: TrainingData, *, strategy: tf.distribute.Strategy, accumulation: int, first_step: int, num_parallel: int = 0
) -> Iterator[StepBatch]:
    """Yield the batch of every optimizer step from ``first_step``, counted from 0, without end.

    ``num_parallel``: micro batches that are read at once; 0 leaves it to TensorFlow.
    """
    rows = StepRows(data, num_replicas=strategy.num_replicas_in_sync, accumulation=accumulation)
    first = first_step * strategy.num_replicas_in_sync * accumulation
    return _distributed(
        rows.micro_batch,
        range(first, ENDLESS),
        strategy=strategy,
        shape=(accumulation, data.micro_batch_size, data.seq_len),
        num_parallel=num_parallel,
    )


def evaluation_steps(data: TrainingData, *, strategy: tf.distribute.Strategy) -> Iterator[StepBatch]:
    """Yield held-out batches: over all replicas every sample once; rows without labels fill up the last one."""
    rows = EvaluationRows(data, num_replicas=strategy.num_replicas_in_sync)
    return _distributed(
        rows.micro_batch,
        range(len(rows)),
        strategy=strategy,
        shape=(1, data.micro_batch_size, data.seq_len),
        num_parallel=0,
    )


def _distributed(
    micro_batch: Callable[[int], tuple[Tokens, Tokens]],
    numbers: range,
    *,
    strategy: tf.distribute.Strategy,
    shape: tuple[int, int, int],
    num_parallel: int,
) -> Iterator[StepBatch]:
    """Yield what all replicas compute at once; each takes the next ``shape[0]`` micro batches in turn."""
    accumulation, *of_one = shape

    def read(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs, labels = tf.numpy_function(micro_batch, [number], (tf.int32, tf.int32), stateful=False)
        return tf.ensure_shape(inputs, of_one), tf.ensure_shape(labels, of_one)

    def pipeline(_: tf.distribute.InputContext) -> tf.data.Dataset:
        found = tf.data.Dataset.range(numbers.start, numbers.stop)
        found = found.map(read, num_parallel_calls=num_parallel or tf.data.AUTOTUNE, deterministic=True)
        found = found.batch(accumulation, drop_remainder=True)
        return found.prefetch(AHEAD * strategy.num_replicas_in_sync)

    for inputs, labels in strategy.distribute_datasets_from_function(pipeline):
        yield StepBatch(inputs=inputs, labels=labels)


@final
class StepRows:
    """Micro batches of a run by one number each: step by step, in a step replica by replica."""

    def __init__(self, data: TrainingData, *, num_replicas: int, accumulation: int) -> None:
        self._data = data
        self._num_replicas = num_replicas
        self._accumulation = accumulation
        # A step's draws are all found at once, and asked for one after the other.
        self._draws = lru_cache(maxsize=4 * num_replicas)(self._draws_of)

    def micro_batch(self, number: int) -> tuple[Tokens, Tokens]:
        """Return ids and labels, (micro batch, seq) each."""
        part, index = divmod(int(number), self._accumulation)
        step, replica = divmod(part, self._num_replicas)
        return filled(self._data.train, self._draws(step, replica)[index], like=self._data)

    def _draws_of(self, step: int, replica: int) -> list[Draw]:
        return self._data.order.rank_draws(
            step, rank=replica, world_size=self._num_replicas, micro_batch_size=self._data.micro_batch_size
        )


@final
class EvaluationRows:
    """Held-out micro batches by one number each: pass by pass, in a pass replica by replica."""

    def __init__(self, data: TrainingData, *, num_replicas: int) -> None:
        assert data.held_out is not None, "evaluation was not configured"
        self._data = data
        self._held_out = data.held_out
        self._ids = [
            evaluation_micro_batches(
                data.num_eval_samples, rank=replica, world_size=num_replicas, micro_batch_size=data.micro_batch_size
            )
            for replica in range(num_replicas)
        ]

    def __len__(self) -> int:
        return sum(map(len, self._ids))

    def micro_batch(self, number: int) -> tuple[Tokens, Tokens]:
        """Return ids and labels, (micro batch, seq) each; rows that only fill up have no label."""
        turn, replica = divmod(int(number), len(self._ids))
        ids = self._ids[replica][turn]
        return filled(self._held_out, Draw(ids=ids, positions=ids), like=self._data)


def filled(samples: Samples, draw: Draw, *, like: TrainingData) -> tuple[Tokens, Tokens]:
    """Return ids and labels of a draw, filled up to the micro batch and to the sequence: graphs have one shape.

    A decoder sees no later position, so that a row that ends early needs no mask, only labels to be ignored.
    """
    inputs = np.full((like.micro_batch_size, like.seq_len), FILLING_ID, dtype=np.int32)
    labels = np.full_like(inputs, IGNORED_LABEL)
    if len(draw.ids):
        batch = samples.batch(draw)
        rows, columns = batch.labels.shape
        inputs[:rows, :columns] = batch.inputs["input_ids"].numpy()
        labels[:rows, :columns] = batch.labels.numpy()
    return inputs, labels
