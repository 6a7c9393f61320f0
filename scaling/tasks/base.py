"""`Task`: what is done with a model's outputs and a batch's labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch

from scaling.batch import Batch

Forward = Callable[..., Any]
"""The model as an engine runs it: inputs by name to the library's output object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What evaluation adds up over batches and ranks: sums on the device, never means."""

    loss_sum: torch.Tensor
    counts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Whole numbers by name, of the same shapes for every batch."""


class Task(ABC):
    """A loss over units. Stateless; the same object serves every batch and rank."""

    couples_samples: ClassVar[bool] = False
    """A sample's loss depends on the others of its forward pass: cutting micro batches anew changes the training."""

    @abstractmethod
    def num_units(self, labels: torch.Tensor) -> int:
        """Return the units that ``labels`` name: the weight of their batch."""

    @abstractmethod
    def loss_of(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the batch's units, in fp32; gradients flow unless grad mode is off."""

    def outputs_of(self, forward: Forward, batch: Batch) -> Any:
        """Return the model's outputs for the batch."""
        return forward(**batch.inputs)

    def counts_of(self, outputs: Any, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Return whole numbers that metrics are made of, besides the loss; none unless a task has some."""
        return {}

    def metrics(self, counts: Mapping[str, torch.Tensor], *, num_units: int) -> dict[str, float]:
        """Return the metrics by name from counts that were summed over all batches and ranks."""
        return {}

    @final
    def loss_sum(self, forward: Forward, batch: Batch) -> torch.Tensor:
        """Return the loss of one micro batch, summed over its units."""
        return self.loss_of(self.outputs_of(forward, batch), batch)

    @final
    def score(self, forward: Forward, batch: Batch) -> Score:
        """Return what one micro batch adds to an evaluation, from one forward pass."""
        outputs = self.outputs_of(forward, batch)
        return Score(loss_sum=self.loss_of(outputs, batch), counts=self.counts_of(outputs, batch))


def training_only(smoothing: float) -> float:
    """Return ``smoothing`` while gradients are recorded, else 0: a model is judged by the true labels alone."""
    return smoothing if torch.is_grad_enabled() else 0.0
