"""`Engine`: one way of spreading model states over ranks, behind operations that mean the same for all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn

from scaling.batch import Batch
from scaling.engines.loss_scale import LossScaler, Outcome, UpdateState
from scaling.engines.lost_updates import LostUpdates
from scaling.engines.optimizer import LR_SCALE
from scaling.engines.state import StateSlice
from scaling.meter import PhaseMeter
from scaling.ownership import Owned
from scaling.tasks.base import Score, Task
from scaling.tasks.language import CausalLm
from strategies.estimate import Phase
from strategies.job import Job, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What `Engine.optimizer_step` did."""

    grad_norm: torch.Tensor
    """Global 2-norm of the unscaled gradient before clipping, a scalar on the device."""
    outcome: Outcome


# torch 2.13 renames it; older versions know only the second name.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Engine(ABC):
    """A model being trained. Mutable; the process group must exist before one is made.

    Gradients are averaged over ranks by every engine, so a loss that is to be summed over ranks is handed to `backward`
    times `data_parallel_size`. Nothing else scales it.
    """

    _optimizer: torch.optim.Optimizer
    """Made by each engine once its parameters are where they stay."""

    def __init__(self, model: nn.Module, *, job: Job, device: torch.device, meter: PhaseMeter) -> None:
        self.model = model
        """The plain module, for names, config and export; run it through `loss_sum` only."""
        self.device = device
        self.rank = dist.get_rank()
        self.data_parallel_size = dist.get_world_size()
        self._meter = meter
        self._scaler = LossScaler(is_dynamic=job.precision.is_fp16)
        self._lost_updates = LostUpdates(self.sum_over_ranks) if job.precision is Precision.BF16_PURE else None
        self.task: Task = CausalLm(loss=job.loss)
        """What a batch's loss is; `build_engine` sets another one."""

    @final
    def loss_sum(self, batch: Batch) -> torch.Tensor:
        """Return the loss of one micro batch, summed over its tokens or samples, in fp32 on the device."""
        with self._meter.phase(Phase.FORWARD if torch.is_grad_enabled() else Phase.EVALUATION):
            return self.task.loss_sum(self._forward, batch.to(self.device))

    @final
    def score(self, batch: Batch) -> Score:
        """Return the summed loss and the counts of one evaluation batch, on the device; without gradients only."""
        with self._meter.phase(Phase.EVALUATION):
            return self.task.score(self._forward, batch.to(self.device))

    @final
    def backward(self, loss: torch.Tensor) -> None:
        """Add this micro batch's gradients; inside `accumulate` only."""
        with self._meter.phase(Phase.BACKWARD):
            self._backward(loss)

    @final
    def optimizer_step(self) -> Update:
        """Unscale and clip the gradients, update where they are finite, and clear them.

        Where they are not, neither weights nor optimizer states change. All ranks decide by the same number.
        """
        with self._meter.phase(Phase.OPTIMIZER_STEP):
            grad_norm, is_finite = self._optimizer_step()
        return Update(grad_norm=grad_norm, outcome=self._scaler.update(is_finite=is_finite))

    @property
    def update_state(self) -> UpdateState:
        """The loss scale and the counts of updates, for schedules and checkpoints; `load_update_state` restores it."""
        return self._scaler.state

    @final
    def load_update_state(self, state: UpdateState) -> None:
        """Go on from ``state``, as a checkpoint has kept it."""
        self._scaler.state = state

    @abstractmethod
    def gradient_shares(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (parameter, part of its complete gradient): over all ranks every element once, times the loss scale.

        Between the last `backward` of a window and the optimizer step. No collective; a rank may have no part of one.
        """

    @final
    def nonfinite_gradients(self) -> list[str]:
        """Return the parameters whose complete gradient has an infinite element or one that is no number.

        Between the last `backward` of a window and the optimizer step; a collective, equal on all ranks.
        """
        names = [name for name, _ in self.model.named_parameters()]
        mine = {name: int((~share.isfinite()).sum()) for name, share in self.gradient_shares()}
        counts = torch.tensor([mine.get(name, 0) for name in names], device=self.device)
        return [name for name, count in zip(names, self.sum_over_ranks(counts).tolist(), strict=True) if count]

    @abstractmethod
    def accumulate(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro batch; after the last one of a window gradients are complete on all ranks."""

    @property
    @abstractmethod
    def can_repeat_steps(self) -> bool:
        """Whether `abandon_pass` and `drop_gradients` can be used."""

    @abstractmethod
    def abandon_pass(self) -> None:
        """Forget a forward or backward that an exception has ended; this rank's gradients are of no use until dropped.

        Collectives that it has begun are not undone: the other ranks take part in them.
        """

    @abstractmethod
    def drop_gradients(self) -> None:
        """Forget all gradients of this rank, as if the window had not begun; weights and moments stay."""

    @final
    def set_learning_rate(self, learning_rate: float) -> None:
        """Use ``learning_rate`` for every parameter group from the next step on."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate * group.get(LR_SCALE, 1.0)

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The learning rate of every parameter group: groups with weight decay first, in the optimizer's order."""
        return tuple(group["lr"] for group in self._optimizer.param_groups)

    @abstractmethod
    def gathered_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, whole tensor) of every parameter, tied ones once. Every rank must take every item: a collective.

        A tensor is valid until the next one is asked for.
        """

    @abstractmethod
    def state_slices(self) -> Iterator[StateSlice]:
        """Yield this rank's part, maybe empty, of every tensor that training goes on from; on all ranks in one order.

        Live views: what is written to them is what is trained on after `state_restored`.
        """

    @abstractmethod
    def create_moments(self) -> None:
        """Let the optimizer make the states that it would make in its first step."""

    def forget_moments(self) -> None:
        """Give the optimizer states back; the next step makes them anew, as the first one does."""
        self._optimizer.state.clear()

    @abstractmethod
    def state_restored(self) -> None:
        """Make what follows from the state, after all of it has been written to; a collective."""

    @abstractmethod
    def owners(self) -> Iterable[Owned]:
        """Return what this rank holds now, by cause, so that a memory meter can attribute storages."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the framework holds; the engine must not be used afterwards."""

    @abstractmethod
    def _forward(self, **inputs: torch.Tensor) -> Any:
        """Return the model's output object, whose fields the task reads."""

    def _backward(self, loss: torch.Tensor) -> None:
        scale = self._scaler.scale
        (loss if scale == 1.0 else loss * scale).backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def _optimizer_step(self) -> tuple[torch.Tensor, bool]:
        """Return the norm of the unscaled, unclipped gradients as a scalar, and whether it is finite: then update."""

    @final
    def _watching_updates(
        self, weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> AbstractContextManager[None]:
        """Return the context of an update of the weights themselves, this rank's part of them."""
        if self._lost_updates is None:
            return nullcontext()
        learning_rate = max(group["lr"] for group in self._optimizer.param_groups)
        return self._lost_updates.measured(weights, gradients, learning_rate=learning_rate)

    @final
    def sum_over_ranks(self, value: torch.Tensor | int) -> torch.Tensor:
        """Return the sum over all ranks; stays on the device."""
        return self._reduce(value, dist.ReduceOp.SUM)

    @final
    def max_over_ranks(self, value: torch.Tensor | int) -> torch.Tensor:
        """Return the largest value of any rank; stays on the device."""
        return self._reduce(value, dist.ReduceOp.MAX)

    @final
    def gather_over_ranks(self, scalar: torch.Tensor, numbers: Sequence[float] = ()) -> torch.Tensor:
        """Return (rank, 1 + numbers): what every rank brings, as doubles on the device, by one collective."""
        mine = scalar.detach().double().view(1)
        if numbers:
            # Out of pinned memory, because a copy out of other memory waits for the device.
            more = torch.tensor(numbers, dtype=torch.float64, pin_memory=self.device.type == "cuda")
            mine = torch.cat([mine, more.to(self.device, non_blocking=True)])
        gathered = mine.new_empty(self.data_parallel_size * len(mine))
        all_gather(gathered, mine)
        return gathered.view(self.data_parallel_size, len(mine))

    @final
    def zero_scalar(self) -> torch.Tensor:
        """Return a double-precision zero on the device, to sum losses in: thousands of them must not lose digits."""
        return torch.zeros((), dtype=torch.float64, device=self.device)

    @final
    def _reduce(self, value: torch.Tensor | int, op: Any) -> torch.Tensor:
        # A copy, because the reduction works in place; of what rests on the host, on the device.
        if isinstance(value, int):
            reduced = torch.tensor(value, device=self.device)
        else:
            reduced = value.detach().to(self.device, copy=True)
        dist.all_reduce(reduced, op=op)
        return reduced
