"""`RunKind`: what two runs must share for the prediction's error of one to say something about the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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

    @property
    def shipped_device(self) -> Device:
        """Whose shipped errors stand for it. There are none of TensorFlow: those of other people's code do."""
        return self.device if self.strategy.framework is Framework.PYTORCH else Device.GPU

    @property
    def broad_name(self) -> str:
        """In words, without the activation checkpointing."""
        return f"{self.strategy}{' with offload' if self.offloads else ''} on {self.device}"

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.broad_name}, activation checkpointing {self.activation_checkpointing}"

    def is_broadly(self, other: RunKind) -> bool:
        """Whether the two differ in activation checkpointing at most."""
        mine, theirs = ((each.device, each.strategy, each.offloads) for each in (self, other))
        return mine == theirs


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


def kind_of(settings: Settings, *, on_cpu: bool) -> RunKind:
    """Return the kind of a run with such settings."""
    return RunKind(
        device=Device.CPU if on_cpu else Device.GPU,
        strategy=settings.strategy,
        offloads=any(each is not OffloadDevice.NONE for each in (settings.offload_optimizer, settings.offload_param)),
        activation_checkpointing=settings.activation_checkpointing,
    )
