"""The update of all parameters on all replicas, which have the same gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import tensorflow as tf

from scaling.engines.optimizer import OptimizerSettings
from scaling.lr_scales import require_used, scale_of
from scaling.tensorflow.update_rules import UpdateRule


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parameter:
    weight: tf.Variable
    slots: tuple[tf.Variable, ...]
    decays: bool
    decay: float
    lr_scale: float


@final
class Updates:
    """Weights with their optimizer states. Make it in the strategy's scope."""

    def __init__(
        self,
        weights: Mapping[str, tf.Variable],
        *,
        rule: UpdateRule,
        settings: OptimizerSettings,
        strategy: tf.distribute.Strategy,
    ) -> None:
        if settings.lr_scales:
            require_used(list(weights), settings.lr_scales)
        self._rule = rule
        self._strategy = strategy
        self._parameters = {
            name: _Parameter(
                weight=weight,
                slots=tuple(tf.Variable(tf.zeros(weight.shape), trainable=False) for _ in rule.slot_names),
                decays=decays(name, weight.shape),
                decay=settings.weight_decay if decays(name, weight.shape) else 0.0,
                lr_scale=scale_of(name, settings.lr_scales),
            )
            for name, weight in weights.items()
        }

    @property
    def moments(self) -> dict[str, tf.Variable]:
        """Return the states by "<state>/<parameter>"."""
        return {
            f"{kind}/{name}": slot
            for name, parameter in self._parameters.items()
            for kind, slot in zip(self._rule.slot_names, parameter.slots, strict=True)
        }

    @property
    def lr_scales(self) -> tuple[float, ...]:
        """Return the factor of the learning rate in each group that torch's optimizer has, in its order."""
        groups = dict.fromkeys((each.decays, each.lr_scale) for each in self._parameters.values())
        return tuple(scale for _, scale in sorted(groups, key=lambda group: (not group[0], group[1] != 1.0)))

    def apply(self, gradients: Sequence[Any], factor: tf.Tensor, numbers: tf.Tensor) -> None:
        """Update every parameter on every device from its gradient times ``factor``; outside of `Strategy.run`."""
        for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
            self._strategy.extended.update(
                parameter.weight,
                self._update_on_device,
                args=(gradient, factor, numbers, *parameter.slots),
                kwargs={"decay": parameter.decay, "lr_scale": parameter.lr_scale},
                group=False,
            )

    def _update_on_device(
        self,
        weight: tf.Variable,
        gradient: tf.Tensor,
        factor: tf.Tensor,
        numbers: tf.Tensor,
        *slots: tf.Variable,
        decay: float,
        lr_scale: float,
    ) -> None:
        self._rule.update(weight, gradient * factor, list(slots), numbers, decay=decay, lr_scale=lr_scale)


def decays(name: str, shape: Sequence[int]) -> bool:
    """Return whether weight decay applies: not to norms, biases and other 1-d tensors, as `split_by_decay` has it."""
    return len(shape) > 1 and "bias" not in name.rpartition(".")[2]
