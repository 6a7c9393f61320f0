"""The update rules against torch's optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

from scaling.engines.optimizer import OptimizerSettings, make_optimizer, split_by_decay
from scaling.errors import EngineError
from scaling.lr_scales import parse_lr_scales
from scaling.tensorflow.devices import mirrored_strategy
from scaling.tensorflow.update_rules import make_rule
from scaling.tensorflow.updates import Updates, decays
from strategies.job import Job, OptimizerName, Precision

pytestmark = pytest.mark.tensorflow

SETTINGS = OptimizerSettings(weight_decay=0.1)
GRADIENT_SCALES = [1.0, 1e-7]
"""The second beside epsilon, 1e-8: there it matters where epsilon is added."""


def run_torch(optimizer: Any, weight: torch.nn.Parameter, gradients: list[Any]) -> Any:
    for index, gradient in enumerate(gradients):
        optimizer.param_groups[0]["lr"] = 1e-2 / (index + 1)
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
    return weight.detach().numpy()


@pytest.mark.parametrize("scale", GRADIENT_SCALES)
@pytest.mark.parametrize("name", [OptimizerName.ADAMW, OptimizerName.SGD])
def test_rule_matches_torch(name: OptimizerName, scale: float) -> None:
    random = np.random.default_rng(0)
    start = random.normal(size=(50,)).astype(np.float32)
    gradients = [(scale * random.normal(size=50)).astype(np.float32) for _ in range(30)]
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer: Any = (
        torch.optim.AdamW([parameter], weight_decay=SETTINGS.weight_decay)
        if name is OptimizerName.ADAMW
        else torch.optim.SGD([parameter], momentum=SETTINGS.momentum, weight_decay=SETTINGS.weight_decay)
    )
    expected = run_torch(optimizer, parameter, gradients)
    rule = make_rule(name, SETTINGS)
    weight = tf.Variable(start)
    slots = [tf.Variable(tf.zeros(50)) for _ in rule.slot_names]
    for index, gradient in enumerate(gradients):
        numbers = tf.constant(rule.numbers(learning_rate=1e-2 / (index + 1), num_updates=index), tf.float32)
        rule.update(weight, tf.constant(gradient), slots, numbers, decay=SETTINGS.weight_decay, lr_scale=1.0)
    assert np.abs(weight.numpy() - expected).max() <= 1e-6
    assert np.abs(expected - start).max() > 1e-2
    for kind, slot in zip(rule.slot_names, slots, strict=True):
        assert slot.numpy() == pytest.approx(optimizer.state[parameter][kind].numpy(), rel=1e-4), kind


def test_decay_spares_norms_and_biases() -> None:
    assert decays("model.layers.0.mlp.up_proj.weight", (4, 4))
    assert not decays("model.norm.weight", (4,))
    assert not decays("experts.down_proj_bias", (4, 4))


def test_groups_of_learning_rates_are_those_of_torch() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 2))
    settings = OptimizerSettings(weight_decay=0.1, lr_scales=parse_lr_scales(("0.*=0.5", "2.bias=3")))
    job = Job(seq_len=2, global_batch_size=1, precision=Precision.FP32)
    groups = make_optimizer(*split_by_decay(model, settings), settings, job=job).param_groups
    weights = {name: tf.Variable(parameter.detach().numpy()) for name, parameter in model.named_parameters()}
    rule = make_rule(OptimizerName.ADAMW, settings)
    found = Updates(weights, rule=rule, settings=settings, strategy=mirrored_strategy(2)).lr_scales
    assert found == tuple(group["lr_scale"] for group in groups) == (1.0, 0.5, 1.0, 0.5, 3.0)


def test_other_rules_are_refused() -> None:
    with pytest.raises(
        EngineError, match="optimizer=lion cannot be trained in TensorFlow; plan again with adamw or sgd"
    ):
        make_rule(OptimizerName.LION, SETTINGS)
