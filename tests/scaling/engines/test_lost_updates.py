"""The share of 16-bit weights that an update leaves where they are."""

from __future__ import annotations

import pytest
import torch

from scaling.engines.lost_updates import MEASURED_UPDATES, LostUpdates
from scaling.engines.optimizer import OptimizerSettings, make_adamw


def updated(*learning_rates: float) -> None:
    """Update weights of which a quarter has no gradient, half is 1 and a quarter is 2 ** -6."""
    weight = torch.nn.Parameter(torch.tensor([[1.0] * 300, [1.0] * 300, [2.0**-6] * 300, [1.0] * 300]).bfloat16())
    optimizer = make_adamw([weight], [], OptimizerSettings(weight_decay=0.0))
    lost = LostUpdates(lambda counts: counts)
    for learning_rate in learning_rates:
        weight.grad = torch.ones_like(weight)
        weight.grad[3] = 0.0
        optimizer.param_groups[0]["lr"] = learning_rate
        with lost.measured([weight], [weight.grad], learning_rate=learning_rate):
            optimizer.step()


def test_share_is_that_of_weights_whose_spacing_is_too_wide(caplog: pytest.LogCaptureFixture) -> None:
    # AdamW moves by the learning rate: a thousandth is a quarter of bfloat16's spacing below one, 2 ** -8, and eight
    # times that below 2 ** -6, where a weight moves. Two of three weights with a gradient stay.
    updated(*[1e-3] * (MEASURED_UPDATES + 2))
    assert caplog.text.count("66.7 % of the weights with a gradient did not move") == 1
    assert "learning_rate=0.001" in caplog.text


def test_updates_without_a_learning_rate_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    updated(0.0, *[1e-3] * (MEASURED_UPDATES - 1))
    assert caplog.text == ""
    updated(0.0, *[0.125] * MEASURED_UPDATES)
    assert " 0.0 % of the weights" in caplog.text
