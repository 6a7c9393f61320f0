"""How much of an update 16-bit weights without fp32 masters lose to rounding, measured in real steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch

MEASURED_UPDATES = 3
"""Ours: the share of weights that stay where they are hardly changes from one of the first updates to the next."""
SAMPLED_ELEMENTS = 2**13
"""Ours, about as many per rank: a share is known to a percent, and the copies take 16 KiB."""

logger = logging.getLogger(__name__)


@final
class LostUpdates:
    """Warns once, after the first updates that have a learning rate, which share of the weights did not move.

    Counted are weights whose gradient is not zero: AdamW, with moments that start at zero, moves all of those.
    """

    def __init__(self, sum_over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._sum_over_ranks = sum_over_ranks
        self._counts = list[torch.Tensor]()
        self._is_done = False

    @contextmanager
    def measured(
        self, weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], *, learning_rate: float
    ) -> Iterator[None]:
        """Compare the weights before and after the update that is made inside."""
        if self._is_done or learning_rate <= 0.0:
            yield
            return
        stride = max(1, sum(weight.numel() for weight in weights) // SAMPLED_ELEMENTS)
        before = _sample(weights, stride).clone()
        has_update = _sample(gradients, stride) != 0
        yield
        has_stayed = (_sample(weights, stride) == before) & has_update
        self._counts.append(torch.stack([has_stayed.sum(), has_update.sum()]))
        if len(self._counts) == MEASURED_UPDATES:
            self._report(learning_rate)

    def _report(self, learning_rate: float) -> None:
        self._is_done = True
        stayed, updated = self._sum_over_ranks(torch.stack(self._counts).sum(0)).tolist()
        if updated:
            logger.warning(
                "precision=bf16-pure: in the first %d updates (learning_rate=%.3g) %.1f %% of the weights with a "
                "gradient did not move, since their change was lost in rounding to bfloat16; precision=bf16 keeps fp32 "
                "masters and loses none",
                MEASURED_UPDATES,
                learning_rate,
                100 * stayed / updated,
            )


def _sample(tensors: Sequence[torch.Tensor], stride: int) -> torch.Tensor:
    """Return every ``stride``-th element of each tensor, one after another."""
    return torch.cat([tensor.detach().flatten()[::stride] for tensor in tensors])
