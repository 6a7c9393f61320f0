"""`RunKind`: what two runs must share for the prediction's error of one to say something about the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Framework, OffloadDevice, StrategyName
from strategies.records import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind:
    """A strategy on a kind of device, with what decides which closed forms a peak comes from."""

    device: Device
    strategy: StrategyName
    offloads: bool
    """Whether optimizer states or weights rest in host memory or on disk."""
    activation_checkpointing: ActivationCheckpointing
    model: str
    """Which one, by its shape: see `model_of`."""

    @property
    def shipped_device(self) -> Device:
        """Whose shipped errors stand for it. There are none of TensorFlow: those of other people's code do."""
        return self.device if self.strategy.framework is Framework.PYTORCH else Device.GPU

    @property
    def strategy_name(self) -> str:
        """In words, without activation checkpointing and model."""
        return f"{self.strategy}{' with offload' if self.offloads else ''} on {self.device}"

    @property
    def name(self) -> str:
        """In words, without the model."""
        return f"{self.strategy_name}, activation checkpointing {self.activation_checkpointing}"


class Settings(Protocol):
    """What a plan, a variant of plans and a record all say."""

    @property
    def strategy(self) -> StrategyName: ...
    @property
    def activation_checkpointing(self) -> ActivationCheckpointing: ...
    @property
    def offload_optimizer(self) -> OffloadDevice: ...
    @property
    def offload_param(self) -> OffloadDevice: ...


def kind_of(settings: Settings, *, on_cpu: bool, model: str) -> RunKind:
    """Return the kind of a run with such settings; ``model``: of `model_of`."""
    return RunKind(
        device=Device.CPU if on_cpu else Device.GPU,
        strategy=settings.strategy,
        offloads=any(each is not OffloadDevice.NONE for each in (settings.offload_optimizer, settings.offload_param)),
        activation_checkpointing=settings.activation_checkpointing,
        model=model,
    )


@lru_cache(maxsize=256)
def model_of(trained: ModelSpec) -> str:
    """Return what tells models apart without their names; ``trained``: with what is trained of it."""
    return model_name(trained.family, num_params=trained.num_params, num_trained_params=trained.num_trained_params)


def model_name(family: str, *, num_params: int, num_trained_params: int) -> str:
    """Return a model by its family and size, as ``llama, 4615424 parameters``."""
    part = "" if num_trained_params == num_params else f", {num_trained_params} trained"
    return f"{family}, {num_params} parameters{part}"
