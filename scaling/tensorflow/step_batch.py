"""`StepBatch`: what every replica computes in one optimizer step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The global batch of one step, dealt to the replicas; each has (accumulation steps, micro batch size, …)."""

    inputs: tf.distribute.DistributedValues
    """Token ids, int32 (accumulation, micro batch, seq). With one replica a plain tensor will do."""
    labels: tf.distribute.DistributedValues
    """As the inputs, not moved; ignored where -100."""


def deal(
    strategy: tf.distribute.Strategy,
    inputs: NDArray[np.generic],
    labels: NDArray[np.generic],
    *,
    micro_batch_size: int,
) -> StepBatch:
    """Return a global batch (sample, …) cut into micro batches, which the replicas get in turn.

    The same deal as `scaling.data.order.rank_positions` makes among ranks.
    """
    num_replicas = strategy.num_replicas_in_sync

    def part(whole: NDArray[np.generic], replica: int) -> tf.Tensor:
        cut = whole.reshape(-1, num_replicas, micro_batch_size, *whole.shape[1:])
        return tf.constant(cut[:, replica])

    def per_replica(whole: NDArray[np.generic]) -> tf.distribute.DistributedValues:
        return strategy.experimental_distribute_values_from_function(
            lambda context: part(whole, context.replica_id_in_sync_group)
        )

    return StepBatch(inputs=per_replica(inputs), labels=per_replica(labels))
