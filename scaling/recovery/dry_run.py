"""A rehearsal on the run's own engine: what the first hours would show about memory, in the first minute.

Two optimizer steps (optimizer states appear in the first, so the second is the larger one), one evaluation and the
gathering of all weights that a save begins with, with the longest batch that the plan allows. Then all is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from scaling.batch import Batch
from scaling.checkpoint.random_states import random_states, restore_random_states
from scaling.engines.base import Engine
from scaling.loop import AddGradients, evaluate, train_step
from scaling.meter import PhaseMeter
from scaling.train_config import DryRun
from strategies.decision import Decision
from strategies.estimate import MemoryProfile, Phase
from strategies.explain import largest_causes
from strategies.units import format_bytes

NUM_STEPS = 2


def dry_run(
    engine: Engine, micro_batches: Sequence[Batch], *, seq_len: int, gradients: AddGradients, meter: PhaseMeter
) -> None:
    """Train, evaluate and gather once with rows of ``seq_len`` tokens, and leave the engine as new.

    Raises:
        torch.OutOfMemoryError: on a rank where that does not fit; see `Ladder` for what is tried before.
    """
    longest = [stretched(batch, seq_len=seq_len) for batch in micro_batches]
    with _unchanged(engine):
        engine.set_learning_rate(0.0)  # with which an update leaves every weight as it is, bit for bit
        for _ in range(NUM_STEPS):
            train_step(engine, longest, gradients=gradients)
        evaluate(engine, longest[:1])
        with meter.phase(Phase.SAVE):
            for _ in engine.gathered_parameters():
                pass


def stretched(batch: Batch, *, seq_len: int) -> Batch:
    """Return the batch with rows of ``seq_len`` tokens, the given ones over and over; as it is where it has no rows."""
    ids = batch.inputs.get("input_ids")
    if ids is None or ids.shape[1] >= seq_len:
        return batch

    def longer(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[:2] != ids.shape:
            return tensor
        times = -(-seq_len // ids.shape[1])
        return tensor.repeat(1, times, *[1] * (tensor.dim() - 2))[:, :seq_len]

    return Batch(
        inputs={name: longer(tensor) for name, tensor in batch.inputs.items()},
        labels=longer(batch.labels),
        num_loss_units=batch.num_loss_units,  # of a step that changes nothing
    )


@contextmanager
def _unchanged(engine: Engine) -> Iterator[None]:
    """Set back what steps with a learning rate of zero change: moments, buffers, random numbers, the loss scale."""
    random, update_state = random_states(engine.device), engine.update_state
    buffers = {name: buffer.clone() for name, buffer in engine.model.named_buffers()}
    yield
    engine.forget_moments()
    for name, buffer in engine.model.named_buffers():
        buffer.copy_(buffers[name])
    engine.load_update_state(update_state)
    restore_random_states(random, engine.device)


def is_rehearsed(when: DryRun, device: torch.device) -> bool:
    """Return whether a run on ``device`` begins with a dry run."""
    return when is DryRun.ALWAYS or (when is DryRun.AUTO and device.type == "cuda")


def beside_prediction(measured: MemoryProfile | None, decision: Decision) -> list[str]:
    """Return the peak of every phase of a dry run beside the predicted one, as lines to print."""
    if measured is None:
        return ["dry run: done; its memory was not metered, since measure_steps=0"]
    predicted = {each.phase: each for each in decision.estimate.memory.phases}
    lines = ["dry run: peak memory of every phase, predicted and measured on the rank that holds most"]
    for each in measured.phases:
        expected = format_bytes(predicted[each.phase].total_bytes) if each.phase in predicted else "not predicted"
        lines.append(
            f"  {each.phase.value.replace('_', ' '):15} {expected:>13}  {format_bytes(each.total_bytes):>12}  "
            f"({largest_causes(each)})"
        )
    return lines
