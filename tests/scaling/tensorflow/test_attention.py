"""Attention with numbers that are known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from scaling.tensorflow.attention import attend, causal_bias

pytestmark = pytest.mark.tensorflow


def test_products_beyond_fp16_do_not_overflow() -> None:
    """A score is 64 times 40 squared, which fp16 does not hold, over 8, which it does; all shares are equal."""
    same = tf.fill([1, 3, 1, 64], 40.0)
    value = tf.tile(tf.reshape(tf.constant([3.0, 6.0, 12.0], tf.float16), [1, 3, 1, 1]), [1, 1, 1, 64])
    mixed = attend(same, same, value, bias=causal_bias(3, None), dropout=0.0, seed=None, place=0)
    assert np.abs(mixed.numpy() - np.reshape([3.0, 4.5, 7.0], (1, 3, 1))).max() <= 1e-2
