"""A model of one weight whose gradient is what it is fed, so that every number of a step is known beforehand."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scaling.engines.optimizer import OptimizerSettings
from scaling.tensorflow.devices import mirrored_strategy
from scaling.tensorflow.losses import Objective
from scaling.tensorflow.mirrored import MirroredEngine, MirroredStep
from scaling.tensorflow.step_batch import deal
from strategies.job import Job, OptimizerName, Precision

SUMS = Objective(
    loss_sum=lambda outputs, labels: tf.reduce_sum(outputs),
    num_units=lambda labels: tf.size(labels, out_type=tf.int64),
)
"""The sum of the outputs over the number of samples."""


class OneWeight(keras.Model):
    """Returns the weight times its input; the weight starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.add_weight(name="weight", shape=(1,), initializer="zeros")
        self.built = True

    def call(self, inputs: tf.Tensor, dropout_seed: tf.Tensor | None = None) -> tf.Tensor:
        return inputs * self.weight.value


def toy_engine(
    *, num_replicas: int, accumulation: int = 1, max_norm: float = 0.0, precision: Precision = Precision.FP32
) -> MirroredEngine:
    """Gradient descent; the optimizer's first step moves the weight by rate times gradient."""
    strategy = mirrored_strategy(num_replicas)
    job = Job(
        seq_len=2,
        global_batch_size=1,
        precision=precision,
        optimizer=OptimizerName.SGD,
        gradient_clipping=max_norm,
    )
    with strategy.scope():
        model = OneWeight()
    return MirroredEngine(
        model,
        strategy=strategy,
        job=job,
        settings=OptimizerSettings(weight_decay=0.0),
        gradient_accumulation_steps=accumulation,
        objective=SUMS,
        parameters={"weight": model.weight},
    )


def step(engine: MirroredEngine, samples: list[float], *, learning_rate: float = 1.0) -> MirroredStep:
    """Train on ``samples``, dealt in turn to the replicas."""
    whole = np.array(samples, np.float32)
    micro_batch_size = len(samples) // (engine.num_replicas * engine.gradient_accumulation_steps)
    batch = deal(engine.strategy, whole, whole, micro_batch_size=micro_batch_size)
    return engine.train_step(batch, learning_rate=learning_rate)


def weights(engine: MirroredEngine) -> list[float]:
    """Return the weight on every replica."""
    local: Any = engine.strategy.experimental_local_results(engine.model.weight.value)
    return [float(each.numpy()[0]) for each in local]
