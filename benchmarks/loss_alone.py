"""How far each loss is from the same in fp64, given the same hidden states and the same head.

Through a whole model other roundings are in the way: those of its backward, which differ by more than the losses do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers.loss.loss_utils import ForCausalLMLoss

from scaling.batch import Batch
from scaling.fused_loss import LogitsScale, head_loss
from scaling.losses import IGNORED_LABEL, chunked_token_sum_loss, next_token_labels, token_sum_loss
from strategies.job import LossImplementation

HUGGING_FACE = "hugging-face"
EXACT = "exact"
LOSSES = (HUGGING_FACE, *(loss.value for loss in LossImplementation))


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneRow:
    """How far a loss in fp32 is from fp64 and from the standard one, given the same hidden states; relative."""

    loss: str
    value: float
    hidden_gradient: float
    """2-norm of the difference over that of the gradient; to fp64."""
    weight_gradient: float
    hidden_gradient_to_standard: float
    weight_gradient_to_standard: float


def measure_alone(model: Any, batch: Batch) -> list[AloneRow]:
    """Return how far every loss is from the exact one, given the model's hidden states and head."""
    hidden = model.base_model(**batch.inputs).last_hidden_state.detach()
    head = model.get_output_embeddings().weight.detach()
    exact = alone(hidden.double(), head.double(), batch, loss=EXACT)
    found = {loss: alone(hidden, head, batch, loss=loss) for loss in LOSSES}
    standard = found[LossImplementation.STANDARD]
    return [
        AloneRow(
            loss=loss,
            value=relative(each[0], exact[0]),
            hidden_gradient=relative(each[1], exact[1]),
            weight_gradient=relative(each[2], exact[2]),
            hidden_gradient_to_standard=relative(each[1], standard[1]),
            weight_gradient_to_standard=relative(each[2], standard[2]),
        )
        for loss, each in found.items()
    ]


def alone(hidden: torch.Tensor, weight: torch.Tensor, batch: Batch, *, loss: str) -> tuple[torch.Tensor, ...]:
    """Return the mean loss and its gradients with respect to hidden states and the head's weight."""
    hidden, head = hidden.clone().requires_grad_(), torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight = torch.nn.Parameter(weight.clone())
    targets = next_token_labels(batch.labels)
    if loss == LossImplementation.FUSED:
        rows = hidden.flatten(0, 1)
        value = head_loss(head, rows, targets.flatten(), scale=LogitsScale(), compute_format=None)
        value = value / batch.num_loss_units
    elif loss == EXACT:
        value = functional.cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), ignore_index=IGNORED_LABEL)
    elif loss == HUGGING_FACE:
        value = ForCausalLMLoss(head(hidden), batch.labels, vocab_size=len(weight))
    else:
        of_logits = token_sum_loss if loss == LossImplementation.STANDARD else chunked_token_sum_loss
        value = of_logits(head(hidden), batch.labels) / batch.num_loss_units
    return (value.detach(), *torch.autograd.grad(value, [hidden, head.weight]))


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the 2-norm of the difference over that of what is expected, worked out in fp64."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def largest_alone(row: AloneRow) -> float:
    """Return the largest of a row's differences."""
    return max(float(getattr(row, name)) for name in AloneRow.__slots__ if name != "loss")


def alone_table(rows: Sequence[AloneRow]) -> str:
    """Return what the loss alone differs by as a Markdown table."""
    lines = [
        "The loss alone, given the same hidden states and head; relative, gradients by 2-norm:\n",
        "| loss | value to fp64 | hidden states to fp64 | weight to fp64 | hidden to standard | weight to standard |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        figures = [getattr(row, name) for name in AloneRow.__slots__ if name != "loss"]
        lines.append(f"| {row.loss} | {' | '.join(f'{figure:.1e}' for figure in figures)} |")
    return "\n".join(lines) + "\n"
