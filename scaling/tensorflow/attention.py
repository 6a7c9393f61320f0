"""Causal attention, plainly: TensorFlow has no fused kernel, so the softmax over all pairs of tokens is kept."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from scaling.tensorflow.decoder_config import Rotation
from scaling.tensorflow.layers import drop

HIDDEN = -1e9
"""Added to the score of a token that is not seen: far below any real one, and finite, as a softmax wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Angles:
    """Cosines and sines of all positions, fp32 (seq, 1, head_dim)."""

    cosines: tf.Tensor
    sines: tf.Tensor


def angles(rotation: Rotation, seq_len: tf.Tensor) -> Angles:
    """Return the angles of positions 0 to ``seq_len``."""
    positions = tf.range(seq_len, dtype=tf.float32)
    products = positions[:, None] * tf.constant(rotation.frequencies, tf.float32)
    both = tf.concat([products, products], axis=-1)[:, None, :]
    return Angles(cosines=tf.cos(both) * rotation.scaling, sines=tf.sin(both) * rotation.scaling)


def rotate(heads: tf.Tensor, by: Angles) -> tf.Tensor:
    """Return (batch, seq, heads, head_dim) rotated by position, in fp32, with the pairs of transformers' llama."""
    heads = tf.cast(heads, tf.float32)
    first, second = tf.split(heads, 2, axis=-1)
    return heads * by.cosines + tf.concat([-second, first], axis=-1) * by.sines


def causal_bias(seq_len: tf.Tensor, window: int | None) -> tf.Tensor:
    """Return what is added to scores, fp32 (seq, seq): 0 for a token that is seen, else `HIDDEN`."""
    query, key = tf.range(seq_len)[:, None], tf.range(seq_len)[None, :]
    seen = key <= query
    if window is not None:
        seen = tf.logical_and(seen, key > query - window)
    return tf.where(seen, 0.0, HIDDEN)


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    bias: tf.Tensor,
    dropout: float,
    seed: tf.Tensor | None,
    place: int,
) -> tf.Tensor:
    """Return (batch, seq, query heads * head_dim); softmax in fp32, products in the format of ``value``.

    ``query`` is (batch, seq, heads, head_dim), ``key`` and ``value`` with as many heads or fewer: each of theirs serves
    equally many of the query's, in order (Ainslie et al. 2023, arXiv:2305.13245).
    """
    num_shared, head_dim = key.shape[2], query.shape[3]
    batch, seq_len = tf.shape(query)[0], tf.shape(query)[1]
    scale, scales_first = head_dim**-0.5, value.dtype == tf.float16
    if scales_first:  # fp16 may hold a scaled product and not the product
        query = query * tf.constant(scale, query.dtype)
    groups = tf.reshape(query, [batch, seq_len, num_shared, query.shape[2] // num_shared, head_dim])
    scores = tf.einsum("bqkgd,bskd->bkgqs", tf.cast(groups, value.dtype), tf.cast(key, value.dtype))
    scores = tf.cast(scores, tf.float32)
    shares = tf.nn.softmax((scores if scales_first else scores * scale) + bias)
    shares = drop(tf.cast(shares, value.dtype), dropout, seed, place)
    mixed = tf.einsum("bkgqs,bskd->bqkgd", shares, value)
    return tf.reshape(mixed, [batch, seq_len, query.shape[2] * head_dim])
