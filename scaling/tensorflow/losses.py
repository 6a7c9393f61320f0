"""Losses as sums over tokens, as `scaling.losses` has them for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from scaling.losses import IGNORED_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is minimised: a sum, and the count that it is divided by once, over the whole global batch."""

    loss_sum: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    """From the model's output and the labels of a micro batch to the loss in fp32."""
    num_units: Callable[[tf.Tensor], tf.Tensor]
    """From labels of any number of micro batches to what the loss sums over, int64."""


def next_token_loss_sum(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of next tokens in nats, summed over the predicted ones, computed in fp32.

    ``logits`` is (batch, seq, vocab), ``labels`` (batch, seq) as given to the model, not moved.
    """
    targets = next_tokens(labels)
    counts = targets != IGNORED_LABEL
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.where(counts, targets, 0), logits=tf.cast(logits, tf.float32)
    )
    return tf.reduce_sum(tf.where(counts, losses, 0.0))


def next_tokens(labels: tf.Tensor) -> tf.Tensor:
    """Return labels moved one place left, so that position i holds what follows token i: (batch, seq)."""
    return tf.pad(labels[:, 1:], [[0, 0], [0, 1]], constant_values=IGNORED_LABEL)


def count_next_tokens(labels: tf.Tensor) -> tf.Tensor:
    """Return how many tokens of ``labels`` (…, seq) are predicted: not the first of a row, not ignored ones."""
    return tf.math.count_nonzero(labels[..., 1:] != IGNORED_LABEL, dtype=tf.int64)


NEXT_TOKENS = Objective(loss_sum=next_token_loss_sum, num_units=count_next_tokens)
