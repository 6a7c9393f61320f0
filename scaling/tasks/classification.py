"""One label a sample: texts or images into classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.nn import functional

from scaling.batch import Batch
from scaling.losses import IGNORED_LABEL, count_labels, sum_loss
from scaling.tasks.base import Task, training_only


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(Task):
    """Cross-entropy of the class, summed over samples."""

    label_smoothing: float = 0.0

    def num_units(self, labels: torch.Tensor) -> int:
        return count_labels(labels)

    def loss_of(self, outputs: Any, batch: Batch) -> torch.Tensor:
        return sum_loss(outputs.logits, batch.labels, smoothing=training_only(self.label_smoothing))

    def counts_of(self, outputs: Any, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Return for every class the samples that have it, that were taken for it, and both; each (classes,)."""
        num_classes = outputs.logits.size(-1)
        predicted, labels = outputs.logits.argmax(dim=-1), batch.labels
        is_counted = labels != IGNORED_LABEL

        def per_class(classes: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
            one_hot = functional.one_hot(classes.clamp(min=0), num_classes)
            return (one_hot * counted.unsqueeze(-1)).sum(dim=0)

        return {
            "labelled": per_class(labels, is_counted),
            "predicted": per_class(predicted, is_counted),
            "correct": per_class(predicted, is_counted & (predicted == labels)),
        }

    def metrics(self, counts: Mapping[str, torch.Tensor], *, num_units: int) -> dict[str, float]:
        """Return accuracy and the mean of the classes' F1; a class that is neither labelled nor predicted counts as 0.

        Source of the second: scikit-learn 1.7, ``f1_score(average="macro", labels=all classes, zero_division=0)``.
        """
        correct, seen = counts["correct"].double(), (counts["labelled"] + counts["predicted"]).double()
        f1 = 2 * correct / seen.clamp(min=1)
        return {"accuracy": float(correct.sum()) / max(num_units, 1), "macro_f1": float(f1.mean())}
