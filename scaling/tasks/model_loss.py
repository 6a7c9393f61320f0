"""Any model of ``transformers`` whose forward returns a loss, taken as it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never, final

import torch

from scaling.batch import Batch
from scaling.losses import count_labels, count_loss_tokens
from scaling.tasks.base import Forward, Task


class MeanOver(StrEnum):
    """What a model's own loss is a mean over."""

    SAMPLES = "samples"
    """Rows whose label is not ignored."""
    LABELS = "labels"
    """Labels that are not ignored."""
    NEXT_TOKENS = "next tokens"
    """The same but for the first of a row: the model moves them by one itself."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoss(Task):
    """The model's own loss, a mean over one forward pass, times what it is a mean of.

    Equal for any cut of a batch where the mean is over exactly that and nothing else is added to it, as router losses
    are. That cannot be seen from outside: where another task knows the loss, it is to be preferred.
    """

    mean_over: MeanOver

    def num_units(self, labels: torch.Tensor) -> int:
        match self.mean_over:
            case MeanOver.SAMPLES:
                return count_labels(labels.flatten(1)[:, 0] if labels.dim() > 1 else labels)
            case MeanOver.LABELS:
                return count_labels(labels)
            case MeanOver.NEXT_TOKENS:
                return count_loss_tokens(labels)
        assert_never(self.mean_over)

    def outputs_of(self, forward: Forward, batch: Batch) -> Any:
        # A mean over nothing would not be a number, and no number times nothing is zero: any labels do then.
        labels = batch.labels if batch.num_loss_units else batch.labels.clamp(min=0)
        return forward(**batch.inputs, labels=labels)

    def loss_of(self, outputs: Any, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = outputs.loss.float() * batch.num_loss_units
        return loss
