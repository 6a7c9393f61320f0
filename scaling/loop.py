"""One optimizer step and one evaluation, the same lines for every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from scaling.batch import Batch
from scaling.engines.base import Engine
from scaling.engines.loss_scale import Outcome
from scaling.watching.observer import UNOBSERVED, Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Outcome of one optimizer step, equal on all ranks; scalars on the device until read."""

    mean_loss: torch.Tensor
    """Nats per token, or sample, over the whole global batch, before the update."""
    grad_norm: torch.Tensor
    """Global 2-norm before clipping."""
    outcome: Outcome
    """Whether the weights were updated, and why not."""
    num_loss_units: torch.Tensor
    """Tokens or samples the loss was taken over, all ranks."""
    told: torch.Tensor
    """(rank, number): what the observer of every rank has told."""

    def read(self) -> StepNumbers:
        """Wait for the device, and return everything that is on it by one copy."""
        scalars = torch.stack([each.double() for each in (self.mean_loss, self.grad_norm, self.num_loss_units)])
        loss, grad_norm, num_units, *told = torch.cat([scalars, self.told.flatten()]).tolist()
        width = self.told.shape[1]
        rows = [tuple(told[first : first + width]) for first in range(0, len(told), width)] if width else []
        return StepNumbers(mean_loss=loss, grad_norm=grad_norm, num_loss_units=int(num_units), told=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """The numbers of a `StepResult`."""

    mean_loss: float
    grad_norm: float
    num_loss_units: int
    told: Sequence[tuple[float, ...]]
    """By rank."""


def add_gradient(engine: Engine, batch: Batch, weight: torch.Tensor, *, is_last: bool) -> torch.Tensor:
    """Add the gradient of one micro batch, its loss times ``weight``; return the loss summed over its units."""
    with engine.accumulate(is_last=is_last):
        loss = engine.loss_sum(batch)
        engine.backward(loss * weight)
    return loss.detach()


def add_gradients(engine: Engine, micro_batches: Sequence[Batch], weight: torch.Tensor) -> torch.Tensor:
    """Add the gradients of this rank's micro batches; return the loss summed over their units."""
    loss_sum = engine.zero_scalar()  # stays on the device: reading it per micro batch would stall the GPU
    for index, batch in enumerate(micro_batches):
        loss_sum += add_gradient(engine, batch, weight, is_last=index == len(micro_batches) - 1)
    return loss_sum


AddGradients = Callable[[Engine, Sequence[Batch], torch.Tensor], torch.Tensor]


def train_step(
    engine: Engine,
    micro_batches: Sequence[Batch],
    *,
    observer: Observer = UNOBSERVED,
    gradients: AddGradients = add_gradients,
) -> StepResult:
    """Run one optimizer step over this rank's micro batches; the engine alone knows how gradients are synchronised."""
    loss_sum, num_units = accumulate_gradients(engine, micro_batches, gradients=gradients)
    observer.before_update()
    update = engine.optimizer_step()
    told = engine.gather_over_ranks(loss_sum, observer.tell())
    mean_loss = told[:, 0].sum() / num_units.clamp(min=1)
    return StepResult(
        mean_loss=mean_loss,
        grad_norm=update.grad_norm,
        outcome=update.outcome,
        num_loss_units=num_units,
        told=told[:, 1:],
    )


def accumulate_gradients(
    engine: Engine, micro_batches: Sequence[Batch], *, gradients: AddGradients = add_gradients
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up the gradients of a global batch; return the loss summed on this rank, and the units of all ranks."""
    num_units = engine.sum_over_ranks(sum(batch.num_loss_units for batch in micro_batches))
    # Dividing by the units of the whole global batch makes every cut of it the same; the factor undoes the mean over
    # ranks. At least one, so that a batch without a single label gives zero gradients, not NaN.
    weight = engine.data_parallel_size / num_units.clamp(min=1)
    return gradients(engine, micro_batches, weight), num_units


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Loss and metrics on held-out samples, equal on all ranks."""

    mean_loss: float
    """Nats per token, or sample, over all of them, each counted once."""
    num_loss_units: int
    metrics: Mapping[str, float]
    """The task's own, over the same units."""


def evaluate(engine: Engine, batches: Iterable[Batch]) -> EvaluationResult:
    """Return loss and metrics over this and every other rank's batches, weighted by tokens or samples.

    Every rank must bring equally many batches (weightless ones to fill up): a sharded forward is a collective.
    """
    engine.model.eval()
    loss_sum, num_units, counts = engine.zero_scalar(), 0, dict[str, torch.Tensor]()
    with torch.no_grad():
        for batch in batches:
            score = engine.score(batch)
            loss_sum += score.loss_sum
            counts = {name: counts.get(name, 0) + count for name, count in score.counts.items()}
            num_units += batch.num_loss_units
    engine.model.train()
    all_units = int(engine.sum_over_ranks(num_units))
    all_counts = {name: engine.sum_over_ranks(count) for name, count in counts.items()}
    return EvaluationResult(
        mean_loss=float(engine.sum_over_ranks(loss_sum)) / max(all_units, 1),
        num_loss_units=all_units,
        metrics=engine.task.metrics(all_counts, num_units=all_units),
    )
