"""Devices for replicas."""

from __future__ import annotations

import pytest
import tensorflow as tf

from scaling.errors import EngineError
from scaling.tensorflow.devices import mirrored_strategy

pytestmark = pytest.mark.tensorflow


def test_strategy_is_made_once() -> None:
    """A second one over the same devices would take part in the collectives of the first."""
    assert mirrored_strategy(2) is mirrored_strategy(2)
    assert mirrored_strategy(2).num_replicas_in_sync == 2


def test_second_strategy_of_several_replicas_is_refused() -> None:
    with pytest.raises(EngineError, match="num_replicas=3, but this process has a strategy of 2; start a new process"):
        mirrored_strategy(3)


def test_fp32_is_not_computed_with_fewer_bits() -> None:
    """As torch 2.13 does by default; without a GPU it makes no difference, and the setting is what can be looked at."""
    mirrored_strategy(2)
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
