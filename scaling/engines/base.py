"""`Engine`: one way of spreading model states over ranks, behind operations that mean the same for all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn

from scaling.batch import Batch
from scaling.losses import chunked_token_sum_loss, next_token_labels, token_sum_loss
from scaling.meter import PhaseMeter
from scaling.ownership import Owned
from strategies.estimate import Phase
from strategies.job import LossImplementation


class Engine(ABC):
    """A model being trained. Mutable; the process group must exist before one is made.

    Gradients are averaged over ranks by every engine, so a loss that is to be summed over ranks is handed to `backward`
    times `data_parallel_size`. Nothing else scales it.
    """

    _optimizer: torch.optim.Optimizer
    """Made by each engine once its parameters are where they stay."""

    def __init__(self, model: nn.Module, *, loss: LossImplementation, device: torch.device, meter: PhaseMeter) -> None:
        self.model = model
        """The plain module, for names, config and export; run it through `loss_sum` only."""
        self.device = device
        self.rank = dist.get_rank()
        self.data_parallel_size = dist.get_world_size()
        self._meter = meter
        self._loss_in_forward = loss is LossImplementation.FUSED
        self._loss_of_logits = chunked_token_sum_loss if loss is LossImplementation.CHUNKED else token_sum_loss

    @final
    def loss_sum(self, batch: Batch) -> torch.Tensor:
        """Return the loss of one micro batch, summed over its tokens, in fp32 on the device."""
        with self._meter.phase(Phase.FORWARD if torch.is_grad_enabled() else Phase.EVALUATION):
            input_ids = batch.input_ids.to(self.device, non_blocking=True)
            labels = batch.labels.to(self.device, non_blocking=True)
            if not self._loss_in_forward:
                return self._loss_of_logits(self._forward(input_ids=input_ids).logits, labels)
            loss: torch.Tensor = self._forward(input_ids=input_ids, targets=next_token_labels(labels)).loss
            return loss

    @final
    def backward(self, loss: torch.Tensor) -> None:
        """Add this micro batch's gradients; inside `accumulate` only."""
        with self._meter.phase(Phase.BACKWARD):
            self._backward(loss)

    @final
    def optimizer_step(self) -> torch.Tensor:
        """Clip, update and clear the gradients; return the global gradient norm before clipping, as a scalar.

        A norm that is not finite means that the weights must not be used any more.
        """
        with self._meter.phase(Phase.OPTIMIZER_STEP):
            return self._optimizer_step()

    @abstractmethod
    def accumulate(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro batch; after the last one of a window gradients are complete on all ranks."""

    @final
    def set_learning_rate(self, learning_rate: float) -> None:
        """Use ``learning_rate`` for every parameter group from the next step on."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    @abstractmethod
    def gathered_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, whole tensor) of every parameter, tied ones once. Every rank must take every item: a collective.

        A tensor is valid until the next one is asked for.
        """

    @abstractmethod
    def owners(self) -> Iterable[Owned]:
        """Return what this rank holds now, by cause, so that a memory meter can attribute storages."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the framework holds; the engine must not be used afterwards."""

    @abstractmethod
    def _forward(self, **inputs: torch.Tensor) -> Any:
        """Return the model's output object, which has logits (batch, seq, vocab), or with ``targets`` the loss."""

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def _optimizer_step(self) -> torch.Tensor: ...

    @final
    def sum_over_ranks(self, value: torch.Tensor | int) -> torch.Tensor:
        """Return the sum over all ranks; stays on the device."""
        return self._reduce(value, dist.ReduceOp.SUM)

    @final
    def max_over_ranks(self, value: torch.Tensor | int) -> torch.Tensor:
        """Return the largest value of any rank; stays on the device."""
        return self._reduce(value, dist.ReduceOp.MAX)

    @final
    def zero_scalar(self) -> torch.Tensor:
        """Return a double-precision zero on the device, to sum losses in: thousands of them must not lose digits."""
        return torch.zeros((), dtype=torch.float64, device=self.device)

    @final
    def _reduce(self, value: torch.Tensor | int, op: Any) -> torch.Tensor:
        # A clone, because the reduction works in place.
        reduced = torch.tensor(value, device=self.device) if isinstance(value, int) else value.detach().clone()
        dist.all_reduce(reduced, op=op)
        return reduced
