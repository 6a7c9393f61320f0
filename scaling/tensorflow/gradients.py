"""The gradients of one replica, over all its micro batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import keras
import tensorflow as tf

from scaling.tensorflow.losses import Objective


@final
class ReplicaGradients:
    """Sums gradients over micro batches on each replica by itself. Make it in the strategy's scope."""

    def __init__(
        self, model: keras.Model, *, weights: Sequence[tf.Variable], objective: Objective, accumulates: bool
    ) -> None:
        self._model = model
        self._weights = weights
        self._objective = objective
        self._sums = [_own_sum(weight) for weight in weights] if accumulates else None

    def compute(
        self, inputs: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss sum and the gradients of ``weight`` times it, over the first dimension: the micro batches."""
        context = tf.distribute.get_replica_context()
        seed = tf.random.experimental.stateless_fold_in(seed, context.replica_id_in_sync_group)
        sums = self._sums
        if sums is None:
            return self._of_one(inputs[0], labels[0], weight, seed)
        for total in sums:
            total.assign(tf.zeros_like(total))

        def add(index: tf.Tensor, loss_sum: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            micro_seed = tf.random.experimental.stateless_fold_in(seed, index)
            loss, gradients = self._of_one(inputs[index], labels[index], weight, micro_seed)
            for total, gradient in zip(sums, gradients, strict=True):
                total.assign_add(gradient)
            return index + 1, loss_sum + loss

        # One at a time: TensorFlow runs ten passes of a loop at once where it can, and would hold their activations.
        _, loss_sum = tf.while_loop(
            lambda index, _: index < tf.shape(inputs)[0],
            add,
            (0, tf.constant(0.0, tf.float64)),
            parallel_iterations=1,
        )
        return loss_sum, [total.read_value() for total in sums]

    def loss_only(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the loss summed over all micro batches."""

        def add(index: tf.Tensor, loss_sum: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            loss = self._objective.loss_sum(self._model(inputs[index]), labels[index])
            return index + 1, loss_sum + tf.cast(loss, tf.float64)

        start = (0, tf.constant(0.0, tf.float64))
        _, loss_sum = tf.while_loop(lambda index, _: index < tf.shape(inputs)[0], add, start, parallel_iterations=1)
        return loss_sum

    def _of_one(
        self, inputs: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = self._objective.loss_sum(self._model(inputs, dropout_seed=seed), labels)
            weighted = loss * weight
        gradients = tape.gradient(weighted, self._weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # That of an embedding comes as rows, one for each token: a token that comes twice has two, and a norm over them
        # would be wrong.
        return tf.cast(loss, tf.float64), [tf.convert_to_tensor(gradient) for gradient in gradients]


def _own_sum(weight: tf.Variable) -> tf.Variable:
    """Return a variable for a replica's own sum of gradients: each replica has another value."""
    return tf.Variable(
        tf.zeros(weight.shape, tf.float32),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the 2-norm over all tensors as fp32: squares summed in fp32 within a tensor, in fp64 over tensors.

    Infinite where an element is, or where a tensor's squares go beyond fp32; not a number where an element is none.
    """
    halves = [tf.cast(tf.nn.l2_loss(gradient), tf.float64) for gradient in gradients]
    return tf.cast(tf.sqrt(2.0 * tf.add_n(halves)), tf.float32)
