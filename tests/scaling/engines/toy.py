"""A model whose gradients can be worked out by hand.

The score of a token is w · x with x from a fixed table, the other class scores zero, and the right class is always the
first. At w = 0 both are equally likely, so a token's loss is ln 2 and its gradient with respect to w is -x / 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from scaling.batch import Batch, causal_batch

Gradient = Sequence[float]
"""With respect to w, of the loss of one token."""

LN_2 = math.log(2)


class Toy(nn.Module):
    """Tokens are rows of the table; besides w there is a parameter that no loss depends on."""

    def __init__(self, gradients: Sequence[Gradient], *, loss: float = LN_2) -> None:
        super().__init__()
        self.register_buffer("table", -2.0 * torch.tensor(gradients, dtype=torch.float32))
        self.register_buffer("rival", torch.tensor(math.log(math.exp(loss) - 1)))
        self.scorer = nn.Linear(len(gradients[0]), 1, bias=False)
        self.unused = nn.Linear(3, 3)
        nn.init.zeros_(self.scorer.weight)

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        # FSDP2 gathers weights in another format than that of buffers.
        score = self.scorer(self.table[input_ids].to(self.scorer.weight.dtype))
        return CausalLMOutput(logits=torch.cat([score, self.rival.expand_as(score)], dim=-1))


class Tokens:
    """Gives every gradient that occurs a token id."""

    def __init__(self) -> None:
        self.gradients: list[tuple[float, ...]] = []

    def id(self, gradient: Gradient) -> int:
        if tuple(gradient) not in self.gradients:
            self.gradients.append(tuple(gradient))
        return self.gradients.index(tuple(gradient))

    def batch(self, gradients: Sequence[Gradient], *, num_padding: int = 2) -> Batch:
        """Return one sample whose predicted tokens have these gradients, followed by ignored ones."""
        ids = [self.id(gradient) for gradient in gradients] + [0] * (1 + num_padding)
        labels = [0] * (1 + len(gradients)) + [-100] * num_padding
        return causal_batch(torch.tensor([ids]), labels=torch.tensor([labels]))
