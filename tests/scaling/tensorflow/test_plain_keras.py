"""What Keras' own optimizers do under MirroredStrategy, wrong as found in 3.15: when one of these fails, it is mended.

Then `scaling.tensorflow.mirrored` need not do that part itself any more.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import pytest
import tensorflow as tf

from scaling.tensorflow.devices import mirrored_strategy

pytestmark = pytest.mark.tensorflow


def apply_on_two_replicas(make_optimizer: Any, gradients: tuple[float, float], *, steps: int = 1) -> tuple[Any, float]:
    """Return the optimizer and a weight that started at 0 after steps with one gradient on each replica."""
    strategy = mirrored_strategy(2)
    with strategy.scope():
        weight = keras.Variable([0.0], name="weight")
        optimizer = make_optimizer()
        optimizer.build([weight])
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([gradients[context.replica_id_in_sync_group]])
    )

    @tf.function
    def step(gradient: Any) -> None:
        strategy.run(lambda each: optimizer.apply([each], [weight]), args=(gradient,))

    for _ in range(steps):
        step(values)
    return optimizer, float(weight.numpy()[0])


def test_keras_clips_each_replica_before_the_sum() -> None:
    _, weight = apply_on_two_replicas(lambda: keras.optimizers.SGD(1.0, global_clipnorm=1.0), (3.0, 3.0))
    assert weight == pytest.approx(-2.0)  # right: -1


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_keras_overlooks_an_overflow_that_is_not_on_the_first_replica(bad: float) -> None:
    optimizer, weight = apply_on_two_replicas(
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=2.0), (1.0, bad)
    )
    assert not math.isfinite(weight)  # right: 0
    assert float(optimizer.dynamic_scale.numpy()) == 2.0  # right: 1


def test_keras_cannot_accumulate() -> None:
    with pytest.raises(RuntimeError, match="merge_call"):
        apply_on_two_replicas(lambda: keras.optimizers.SGD(1.0, gradient_accumulation_steps=2), (1.0, 1.0), steps=2)
