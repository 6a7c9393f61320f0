"""The user's own model and data as a `Problem`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from scaling.models import build_config, build_model, choose_weights, kind_of
from scaling.parity.ranks import MicroBatches
from scaling.tasks.base import Task
from scaling.tasks.build import build_task
from scaling.train_config import TrainConfig
from scaling.training_data import open_training_data
from strategies.decision import Decision
from strategies.load_model import resolve_model


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """What ``scaling.train`` would train, without dropout: its noise differs from rank to rank."""

    config: TrainConfig

    def model(self, decision: Decision) -> nn.Module:
        resolved = resolve_model(decision.model)
        library_config = build_config(resolved)
        switch_dropout_off(library_config)
        weights = choose_weights(resolved, init=self.config.init)
        return build_model(library_config, weights, decision=decision, seed=self.config.seed)

    def data(self, decision: Decision) -> MicroBatches:
        model_config = build_config(resolve_model(decision.model))
        return open_training_data(self.config, decision, model_config=model_config, show_progress=False)

    def task(self, decision: Decision) -> Task:
        kind = kind_of(build_config(resolve_model(decision.model)))
        return build_task(self.config.task, kind, loss=decision.job.loss, label_smoothing=self.config.label_smoothing)


def switch_dropout_off(library_config: Any) -> None:
    """Set every probability of dropping something to zero, in the configurations inside too."""
    for config in _with_inner(library_config):
        for name, value in vars(config).items():
            if ("drop" in name or name.endswith("jitter_noise")) and isinstance(value, float):
                setattr(config, name, 0.0)


def _with_inner(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "model_type"):
            yield from _with_inner(value)
