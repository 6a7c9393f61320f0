"""One optimizer step under MirroredStrategy, with numbers that are known beforehand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scaling.engines.loss_scale import INITIAL_SCALE, Outcome
from scaling.errors import EngineError
from scaling.tensorflow.step_batch import deal
from strategies.job import Precision
from tests.scaling.tensorflow.toy import step, toy_engine, weights

pytestmark = pytest.mark.tensorflow


def test_clipping_acts_on_the_sum_over_replicas() -> None:
    engine = toy_engine(num_replicas=2, max_norm=1.0)
    result = step(engine, [3.0, 3.0])
    assert weights(engine) == pytest.approx([-1.0, -1.0], abs=1e-6)
    assert result.grad_norm == pytest.approx(3.0)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_overflow_on_one_replica_skips_the_step_on_all_and_halves_the_scale(bad: float) -> None:
    engine = toy_engine(num_replicas=2, precision=Precision.FP16_AUTOCAST)
    result = step(engine, [1.0, bad])
    assert weights(engine) == [0.0, 0.0]
    assert result.outcome is Outcome.OVERFLOW
    assert engine.update_state.scale == INITIAL_SCALE / 2
    assert engine.update_state.num_updates == 0
    assert step(engine, [1.0, 3.0]).outcome is Outcome.APPLIED
    assert weights(engine) == [-2.0, -2.0]


def test_bad_gradient_without_scaling_skips_and_says_so() -> None:
    engine = toy_engine(num_replicas=2)
    assert step(engine, [1.0, math.inf]).outcome is Outcome.NOT_FINITE
    assert weights(engine) == [0.0, 0.0]


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_accumulation_equals_one_batch_of_double_size(num_replicas: int) -> None:
    samples = [1.0, 2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0]
    for accumulation in (1, 2):
        engine = toy_engine(num_replicas=num_replicas, accumulation=accumulation)
        for _ in range(2):
            step(engine, samples)
        # The mean is 7.375; momentum 0.9 makes the second step 1.9 times the first.
        assert weights(engine) == pytest.approx([-7.375 * 2.9] * num_replicas)


def test_loss_is_the_mean_over_the_global_batch() -> None:
    """Samples with losses 1, 2 on one replica and 3, 0 on the other; 4.5 and 2.25 are known wrong answers."""
    engine = toy_engine(num_replicas=2)
    engine.model.weight.assign([1.0])
    assert step(engine, [1.0, 2.0, 3.0, 0.0], learning_rate=0.0).mean_loss == pytest.approx(1.5)


def test_clipping_leaves_a_small_gradient_alone() -> None:
    engine = toy_engine(num_replicas=2, max_norm=10.0)
    step(engine, [3.0, 3.0])
    assert weights(engine) == [-3.0, -3.0]


def test_batch_of_another_accumulation_is_refused() -> None:
    engine = toy_engine(num_replicas=2, accumulation=2)
    whole = np.ones(4, np.float32)
    with pytest.raises(EngineError, match="1 micro batches for each replica, but gradient_accumulation_steps=2"):
        engine.train_step(deal(engine.strategy, whole, whole, micro_batch_size=2), learning_rate=1.0)


def test_state_goes_over_to_another_engine() -> None:
    """Weights, moments and `update_state` are everything: a second engine that gets them makes the same next step."""
    first, second = (toy_engine(num_replicas=2, precision=Precision.FP16_AUTOCAST) for _ in range(2))
    step(first, [1.0, 3.0])
    for theirs, own in ((first.weights, second.weights), (first.moments, second.moments)):
        for name, variable in theirs.items():
            own[name].assign(variable.numpy())
    second.load_update_state(first.update_state)
    assert step(first, [2.0, 5.0]) == step(second, [2.0, 5.0])
    assert weights(first) == weights(second) == pytest.approx([-2.0 - 3.5 - 0.9 * 2.0] * 2)
