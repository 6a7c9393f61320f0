"""What trains the traced module: the interface, and the plain one-device case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from scaling.ownership import Owned, Place, module_owners
from scaling.trace.recorder import Recorder

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
LossFunction = Callable[[nn.Module], Tensor]
"""Runs the module on the batch and returns the loss."""


class TraceEngine(ABC):
    """Owns parameters, gradients and optimizer of one rank: the tensors and hooks that the real engine would have."""

    @abstractmethod
    def owners(self) -> Iterator[Owned]:
        """Yield what this rank holds now, with its cause."""

    @abstractmethod
    def step(self) -> None:
        """Clip, update the weights, drop the gradients."""

    @abstractmethod
    def forward(self, loss: LossFunction, *, is_last: bool) -> Tensor:
        """Return the loss of one micro batch; ``is_last`` of the step."""

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Compute gradients, and reduce them where the engine does so after this micro batch."""
        loss.backward()  # type: ignore[no-untyped-call]


class EngineSpec(ABC):
    """How a module is to be trained; makes the engine once the module exists."""

    whole_model_on_device: ClassVar[bool] = True
    """Whether every rank's device holds the unsharded model before the engine is made."""

    def parameters_place(self, module: nn.Module) -> Place:
        """Return where the module's own parameters are when the engine is made."""
        return Place.DEVICE

    def environment(self, recorder: Recorder) -> AbstractContextManager[None]:
        """Return the context in which the module is traced, with what the engine needs, such as a process group."""
        return nullcontext()

    @abstractmethod
    def build(self, module: nn.Module, recorder: Recorder) -> TraceEngine:
        """Return the engine, after the allocations that setting it up makes."""


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return AdamW as the device runs it by default: for-each on CUDA, one parameter at a time on a CPU."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def fused_adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return AdamW as one kernel, without temporaries."""
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SingleDevice(EngineSpec):
    """One process, no sharding, no communication."""

    optimizer: OptimizerFactory = adamw
    gradient_clipping: float = 0.0
    """Largest gradient norm; 0 for no clipping."""

    def build(self, module: nn.Module, recorder: Recorder) -> TraceEngine:
        return PlainEngine(module, self.optimizer, self.gradient_clipping)


class PlainEngine(TraceEngine):
    """Steps a torch optimizer on the module's own parameters."""

    def __init__(self, module: nn.Module, factory: OptimizerFactory, clipping: float) -> None:
        self.module, self.clipping = module, clipping
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = factory(self.trained)

    def owners(self) -> Iterator[Owned]:
        yield from module_owners(self.module, self.optimizer)

    def forward(self, loss: LossFunction, *, is_last: bool) -> Tensor:
        return loss(self.module)

    def step(self) -> None:
        update(self.trained, self.optimizer, self.clipping)


def update(parameters: list[Any], optimizer: torch.optim.Optimizer, clipping: float) -> None:
    """Clip the gradients of ``parameters`` where ``clipping`` is above 0, step, and drop them."""
    if clipping:
        torch.nn.utils.clip_grad_norm_(parameters, clipping)
    optimizer.step()
    optimizer.zero_grad()
