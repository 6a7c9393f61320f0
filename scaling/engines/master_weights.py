"""fp32 master weights beside 16-bit ones, where the framework does not keep them itself (DDP)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import nn

from scaling.engines.optimizer import copy_lr_scale

NUM_CHUNKS = 16
"""fp32 gradients exist for about this part of the model at a time, or for one larger parameter: our choice, between
memory and passes over the parameters."""


@final
class MasterWeights:
    """An fp32 copy of each parameter, which the optimizer updates; the 16-bit weight is its rounded value.

    What DeepSpeed does with the shard of a rank, for whole tensors: gradients are kept and clipped as 16-bit numbers
    widened to fp32, moments are fp32.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._weights = list(parameters)
        self.masters = [nn.Parameter(weight.detach().float()) for weight in self._weights]
        for weight, master in zip(self._weights, self.masters, strict=True):
            copy_lr_scale(weight, master)
        self._by_weight = dict(zip(map(id, self._weights), self.masters, strict=True))

    def of(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Return the masters of ``parameters``, in their order."""
        return [self._by_weight[id(parameter)] for parameter in parameters]

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, *, gradient_factor: torch.Tensor | None) -> None:
        """Update every master from its weight's gradient times the factor, and the weights from the masters.

        In chunks: the optimizer passes over parameters that have no gradient, so widened gradients of a chunk are all
        that ever exists beside the states.
        """
        for chunk in self._chunks():
            for weight, master in chunk:
                master.grad = torch.zeros_like(master) if weight.grad is None else weight.grad.float()
                if gradient_factor is not None:
                    master.grad.mul_(gradient_factor)
            optimizer.step()
            for weight, master in chunk:
                weight.copy_(master)
                master.grad = None

    @torch.no_grad()
    def round_to_weights(self) -> None:
        """Make every weight from its master, which was written to."""
        for weight, master in zip(self._weights, self.masters, strict=True):
            weight.copy_(master)

    def _chunks(self) -> Iterator[list[tuple[nn.Parameter, nn.Parameter]]]:
        most_elements = sum(master.numel() for master in self.masters) // NUM_CHUNKS
        chunk: list[tuple[nn.Parameter, nn.Parameter]] = []
        num_elements = 0
        for weight, master in zip(self._weights, self.masters, strict=True):
            if chunk and num_elements + master.numel() > most_elements:
                yield chunk
                chunk, num_elements = [], 0
            chunk.append((weight, master))
            num_elements += master.numel()
        if chunk:
            yield chunk
