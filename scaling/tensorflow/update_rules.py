"""The update rules of the PyTorch engines on TensorFlow's variables: by kernels that make no temporaries.

Keras' own AdamW adds epsilon before it corrects the second moment's bias (3.15, optimizers/adam.py), which in the first
steps is an epsilon up to thirty times as large as torch's; these rules give torch's numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import numpy as np
import tensorflow as tf

from scaling.engines.optimizer import OptimizerSettings
from scaling.errors import EngineError
from strategies.job import OptimizerName


class UpdateRule(ABC):
    """How one parameter follows from its gradient. Stateless: what a step depends on comes as numbers and slots."""

    slot_names: tuple[str, ...]
    """Of the states of a parameter, each of its shape, as torch's optimizer calls them."""

    @abstractmethod
    def numbers(self, *, learning_rate: float, num_updates: int) -> tuple[float, ...]:
        """Return what is the same for all parameters in the step after ``num_updates``, computed in fp64."""

    @abstractmethod
    def update(
        self,
        weight: tf.Variable,
        gradient: tf.Tensor,
        slots: list[tf.Variable],
        numbers: tf.Tensor,
        *,
        decay: float,
        lr_scale: float,
    ) -> None:
        """Write the new weight and slots of one device."""


@final
class AdamW(UpdateRule):
    """torch.optim.AdamW: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2."""

    slot_names = ("exp_avg", "exp_avg_sq")

    def __init__(self, settings: OptimizerSettings) -> None:
        # The kernel holds both as fp32 and takes 1 - beta of that: 1e-5 off for 0.999, unless the correction of the
        # bias starts from the same rounded number.
        self._betas = tuple(float(np.float32(beta)) for beta in settings.betas)
        self._epsilon = settings.epsilon

    def numbers(self, *, learning_rate: float, num_updates: int) -> tuple[float, ...]:
        first, second = (1.0 - beta ** (num_updates + 1) for beta in self._betas)
        return learning_rate, learning_rate * second**0.5 / first, self._epsilon * second**0.5

    def update(
        self,
        weight: tf.Variable,
        gradient: tf.Tensor,
        slots: list[tf.Variable],
        numbers: tf.Tensor,
        *,
        decay: float,
        lr_scale: float,
    ) -> None:
        rate, corrected_rate, epsilon = tf.unstack(numbers)
        if decay:
            weight.assign(weight * (1.0 - rate * lr_scale * decay))
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            # Zero: the kernel's own correction is 1, because the rate and epsilon are corrected already, in fp64.
            beta1_power=0.0,
            beta2_power=0.0,
            lr=corrected_rate * lr_scale,
            beta1=self._betas[0],
            beta2=self._betas[1],
            epsilon=epsilon,
            grad=gradient,
        )


@final
class Sgd(UpdateRule):
    """torch.optim.SGD with momentum; decay is part of the gradient."""

    slot_names = ("momentum_buffer",)

    def __init__(self, settings: OptimizerSettings) -> None:
        self._momentum = settings.momentum

    def numbers(self, *, learning_rate: float, num_updates: int) -> tuple[float, ...]:
        return (learning_rate,)

    def update(
        self,
        weight: tf.Variable,
        gradient: tf.Tensor,
        slots: list[tf.Variable],
        numbers: tf.Tensor,
        *,
        decay: float,
        lr_scale: float,
    ) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle,
            accum=slots[0].handle,
            lr=numbers[0] * lr_scale,
            grad=gradient + decay * weight if decay else gradient,
            momentum=self._momentum,
        )


RULES = {OptimizerName.ADAMW: AdamW, OptimizerName.SGD: Sgd}


def make_rule(optimizer: OptimizerName, settings: OptimizerSettings) -> UpdateRule:
    """Return the rule.

    Raises:
        EngineError: it has none here.
    """
    if optimizer not in RULES:
        raise EngineError(
            f"optimizer={optimizer} cannot be trained in TensorFlow; plan again with {' or '.join(RULES)}"
        )
    return RULES[optimizer](settings)
