"""Losses as sums over tokens or samples: the caller divides by the count of the whole global batch, once.

The library's own losses are means over one micro batch, so their gradients depend on how a batch was cut. Reading the
logits and summing here works for every model of a kind alike and needs no cooperation from its forward.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from strategies.memory.logits import LOSS_CHUNKS

IGNORED_LABEL = -100
"""Labels with this value take no part in loss or count (transformers' and torch's convention)."""


def next_token_labels(labels: torch.Tensor) -> torch.Tensor:
    """Return labels moved one place left, so that position i holds what follows token i: (batch, seq)."""
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)


def count_loss_tokens(labels: torch.Tensor) -> int:
    """Return how many tokens of ``labels`` (batch, seq) are predicted: not the first of a row, not ignored ones."""
    return count_labels(labels[:, 1:])


def count_labels(labels: torch.Tensor) -> int:
    """Return how many labels are not ignored."""
    return int((labels != IGNORED_LABEL).sum())


def sum_loss(logits: torch.Tensor, targets: torch.Tensor, *, smoothing: float = 0.0) -> torch.Tensor:
    """Return the cross-entropy in nats, summed over the targets that are not ignored, computed in fp32.

    ``logits`` is (..., classes), ``targets`` (...). Smoothing mixes each target with the uniform distribution over the
    classes: (1 - s) * nll + s * mean over classes of -log p, torch's and transformers' ``LabelSmoother``'s formula.
    """
    flat = logits.float().view(-1, logits.size(-1))
    return functional.cross_entropy(
        flat, targets.reshape(-1), ignore_index=IGNORED_LABEL, reduction="sum", label_smoothing=smoothing
    )


def chunked_sum_loss(logits: torch.Tensor, targets: torch.Tensor, *, smoothing: float = 0.0) -> torch.Tensor:
    """Return what `sum_loss` does, part by part of the tokens: the logits of one part at a time are in fp32.

    ``logits`` is (batch, seq, vocab), ``targets`` (batch, seq).
    As torchtitan's ``chunked_cross_entropy`` does (commit e23bb707): the softmax of every part is kept for backward.
    """
    parts = zip(logits.flatten(0, 1).chunk(LOSS_CHUNKS), targets.reshape(-1).chunk(LOSS_CHUNKS), strict=True)
    losses = [
        functional.cross_entropy(
            part.float(), target, ignore_index=IGNORED_LABEL, reduction="sum", label_smoothing=smoothing
        )
        for part, target in parts
    ]
    return torch.stack(losses).sum()


def token_sum_loss(logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float = 0.0) -> torch.Tensor:
    """Return the cross-entropy of next tokens in nats, summed over the predicted ones, computed in fp32.

    ``logits`` is (batch, seq, vocab), ``labels`` (batch, seq) as given to the model, not moved.
    Same formula as transformers 5.24.0, loss/loss_utils.py, ForCausalLMLoss with ``num_items_in_batch`` = 1.
    """
    return sum_loss(logits, next_token_labels(labels), smoothing=smoothing)


def chunked_token_sum_loss(logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float = 0.0) -> torch.Tensor:
    """Return what `token_sum_loss` does, by `chunked_sum_loss`."""
    return chunked_sum_loss(logits, next_token_labels(labels), smoothing=smoothing)
