"""Language modelling: each token is predicted from those before it, or masked ones from those around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

from scaling.batch import Batch
from scaling.losses import (
    IGNORED_LABEL,
    chunked_sum_loss,
    count_labels,
    count_loss_tokens,
    next_token_labels,
    sum_loss,
)
from scaling.tasks.base import Forward, Task, training_only
from strategies.job import LossImplementation


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CausalLm(Task):
    """The next token, summed over all tokens but the first of a row and ignored ones."""

    loss: LossImplementation = LossImplementation.STANDARD
    label_smoothing: float = 0.0

    def num_units(self, labels: torch.Tensor) -> int:
        return count_loss_tokens(labels)

    def outputs_of(self, forward: Forward, batch: Batch) -> Any:
        if self.loss is LossImplementation.FUSED:  # the model's forward ends in the loss, see `compute_loss_fused`
            return forward(**batch.inputs, targets=next_token_labels(batch.labels))
        return forward(**batch.inputs)

    def loss_of(self, outputs: Any, batch: Batch) -> torch.Tensor:
        if self.loss is LossImplementation.FUSED:
            loss: torch.Tensor = outputs.loss
            return loss
        of_logits = chunked_sum_loss if self.loss is LossImplementation.CHUNKED else sum_loss
        targets = next_token_labels(batch.labels)
        return of_logits(outputs.logits, targets, smoothing=training_only(self.label_smoothing))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedLm(Task):
    """The tokens that were hidden from the model, summed over them: labels are ignored everywhere else."""

    loss: LossImplementation = LossImplementation.STANDARD
    label_smoothing: float = 0.0

    def num_units(self, labels: torch.Tensor) -> int:
        return count_labels(labels)

    def loss_of(self, outputs: Any, batch: Batch) -> torch.Tensor:
        of_logits = chunked_sum_loss if self.loss is LossImplementation.CHUNKED else sum_loss
        return of_logits(outputs.logits, batch.labels, smoothing=training_only(self.label_smoothing))

    def counts_of(self, outputs: Any, batch: Batch) -> Mapping[str, torch.Tensor]:
        is_counted = batch.labels != IGNORED_LABEL
        return {"correct": ((outputs.logits.argmax(dim=-1) == batch.labels) & is_counted).sum()}

    def metrics(self, counts: Mapping[str, torch.Tensor], *, num_units: int) -> dict[str, float]:
        return {"accuracy": int(counts["correct"]) / max(num_units, 1)}
