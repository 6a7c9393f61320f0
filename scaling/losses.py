"""The training loss as a sum over tokens: the caller divides by the tokens of the whole global batch, once.

The library's own losses are means over one micro batch, so their gradients depend on how a batch was cut. Reading the
logits and summing here works for every causal language model alike and needs no cooperation from its forward.
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
    return int((labels[:, 1:] != IGNORED_LABEL).sum())


def token_sum_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy in nats, summed over the predicted tokens, computed in fp32.

    ``logits`` is (batch, seq, vocab), ``labels`` (batch, seq) as given to the model, not moved.
    Same formula as transformers 5.24.0, loss/loss_utils.py, ForCausalLMLoss with ``num_items_in_batch`` = 1.
    """
    targets = next_token_labels(labels).reshape(-1)
    flat = logits.float().view(-1, logits.size(-1))
    return functional.cross_entropy(flat, targets, ignore_index=IGNORED_LABEL, reduction="sum")


def chunked_token_sum_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return what `token_sum_loss` does, part by part of the tokens: the logits of one part at a time are in fp32.

    As torchtitan's ``chunked_cross_entropy`` does (commit e23bb707): the softmax of every part is kept for backward.
    """
    targets = next_token_labels(labels).reshape(-1).chunk(LOSS_CHUNKS)
    parts = logits.flatten(0, 1).chunk(LOSS_CHUNKS)
    losses = [
        functional.cross_entropy(part.float(), target, ignore_index=IGNORED_LABEL, reduction="sum")
        for part, target in zip(parts, targets, strict=True)
    ]
    return torch.stack(losses).sum()
