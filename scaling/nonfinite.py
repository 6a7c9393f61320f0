"""What becomes of a step whose loss or gradient is not finite: skipped, or the run stops, on all ranks alike."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from scaling.batch import Batch
from scaling.checkpoint.random_states import random_states, restore_random_states
from scaling.engines.base import Engine
from scaling.engines.loss_scale import Outcome, UpdateState
from scaling.errors import TrainingError
from scaling.loop import accumulate_gradients
from scaling.train_config import NonFinite

MAX_SKIPPED_IN_A_ROW = 50
"""Ours: fp16 falls from its first loss scale to 1 in 16 steps; a run that never updates is of no use."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What is said about a step; equal on all ranks."""

    step: int
    """Counted from 1."""
    loss: float
    grad_norm: float
    learning_rate: float
    outcome: Outcome

    @property
    def is_finite(self) -> bool:
        return self.outcome is Outcome.APPLIED and math.isfinite(self.loss)

    def __str__(self) -> str:
        return f"step {self.step}: loss={self.loss}, grad_norm={self.grad_norm}, learning_rate={self.learning_rate:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeatable:
    """A step's inputs, kept where it may have to be repeated."""

    micro_batches: Sequence[Batch]
    random_states: dict[str, torch.Tensor]
    """Before it, of what dropout draws from."""

    @classmethod
    def of(cls, micro_batches: Sequence[Batch], engine: Engine, *, policy: NonFinite) -> Repeatable:
        """Return the inputs of the step that comes next; random states only where ``policy`` may need them."""
        states = random_states(engine.device) if policy is NonFinite.NAME else {}
        return cls(micro_batches=micro_batches, random_states=states)


def settle(facts: StepFacts, engine: Engine, *, policy: NonFinite, repeatable: Repeatable) -> None:
    """Warn and return where the run goes on after a step that is not finite.

    Raises:
        TrainingError: it must not, by ``policy`` or because it would only skip.
    """
    if goes_on(facts, engine.update_state, policy=policy):
        return
    first = first_nonfinite(engine, repeatable) if policy is NonFinite.NAME else ""
    raise TrainingError(f"{facts}; {why_stopped(facts, policy, first=first)}")


def goes_on(facts: StepFacts, state: UpdateState, *, policy: NonFinite) -> bool:
    """Return whether the run goes on after a step that is not finite, and warn where it does."""
    if facts.outcome is Outcome.OVERFLOW:
        logger.warning(
            "%s; fp16 overflow: the update was skipped, the loss scale is %g from now on", facts, state.scale
        )
        return True
    if policy is NonFinite.SKIP and state.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW:
        fate = "was made, since the gradient is finite" if facts.outcome is Outcome.APPLIED else "was skipped"
        logger.warning("%s; the update %s (%d skipped so far)", facts, fate, state.num_skipped)
        return True
    return False


def why_stopped(facts: StepFacts, policy: NonFinite, *, first: str = "", can_name: bool = True) -> str:
    """Return why a run ends after a step, what is left of it and what to do.

    ``first``: the tensor that was named. ``can_name``: whether another run could name it.
    """
    advice = "lower the learning rate or lengthen the warm-up"
    if policy is NonFinite.SKIP:
        return f"{MAX_SKIPPED_IN_A_ROW} updates in a row were skipped, so nothing is learnt any more: {advice}"
    left = "the update was not made and no model was saved"
    if facts.outcome is Outcome.APPLIED:
        left = "the gradient is finite, but no model was saved"
    if policy is NonFinite.NAME:
        return f"{left}; {first}: {advice}"
    naming = "name the tensor with --nonfinite name, or " if can_name else ""
    return f"{left}: {advice}, or {naming}skip such steps with --nonfinite skip"


def first_nonfinite(engine: Engine, repeatable: Repeatable) -> str:
    """Return which tensor is the first that is not finite when the step is repeated; a collective.

    The output of a module, as the forward pass meets them; where all are finite, the gradient nearest to the loss.
    """
    restore_random_states(repeatable.random_states, engine.device)
    found: list[str] = []
    hooks = [
        module.register_forward_hook(partial(_look_at_output, found, name))
        for name, module in engine.model.named_modules()
    ]
    try:
        accumulate_gradients(engine, repeatable.micro_batches)
    finally:
        for hook in hooks:
            hook.remove()
    by_rank: list[str | None] = [None] * engine.data_parallel_size
    dist.all_gather_object(by_rank, found[0] if found else None)
    for rank, text in enumerate(by_rank):
        if text:
            return f"the first tensor that is not finite is {text}, on rank {rank}"
    if names := engine.nonfinite_gradients():
        rest = f" ({len(names)} gradients are not)" if len(names) > 1 else ""
        return f"all outputs are finite, and the first tensor that is not is the gradient of {names[-1]}{rest}"
    return "nothing of it was found when the step was repeated"


def _look_at_output(found: list[str], name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    if found:
        return
    for tensor in pytree.tree_leaves(output):
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            wrong = int((~tensor.detach().isfinite()).sum())
            if wrong:
                where = f"{name} ({type(module).__name__})" if name else type(module).__name__
                found.append(f"the output of {where}, in {wrong} of {tensor.numel()} elements")
                return
