"""`Batch`: what one rank feeds through one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scaling.losses import IGNORED_LABEL, count_loss_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Token ids and labels, both (batch, seq), on the CPU until an engine takes them."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    num_loss_tokens: int
    """Tokens that the loss sums over."""


def causal_batch(input_ids: torch.Tensor, *, labels: torch.Tensor | None = None) -> Batch:
    """Return a batch whose labels are the ids themselves unless given; the loss moves them by one."""
    labels = input_ids.clone() if labels is None else labels
    return Batch(input_ids=input_ids, labels=labels, num_loss_tokens=count_loss_tokens(labels))


def weightless(batch: Batch) -> Batch:
    """Return the batch with every label ignored: a forward that counts for nothing, to keep ranks in step."""
    return Batch(input_ids=batch.input_ids, labels=torch.full_like(batch.labels, IGNORED_LABEL), num_loss_tokens=0)
