"""The lines of metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One line of metrics.jsonl after an optimizer step."""

    step: int
    """Optimizer steps done."""
    loss: float
    """Nats per token over the global batch, before the update."""
    grad_norm: float
    """Global 2-norm before clipping."""
    lr: float
    skipped: bool = False
    """Whether the update was left out because a gradient was not finite; the schedule does not advance then."""
    loss_scale: float | None = None
    """What the loss was multiplied with; None where nothing is scaled."""
    tokens_per_s: float
    """Tokens of the global batch, all ranks, over the step's time."""
    step_time_s: float
    epoch: float
    """Passes over the data so far."""
    peak_allocated_bytes: int | None
    """Highest so far on any rank; on a CPU over the metered steps; None where none was metered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One line of metrics.jsonl after an evaluation."""

    step: int
    eval_loss: float
    """Nats per token."""
    eval_tokens: int
    eval_time_s: float


Record = StepRecord | EvaluationRecord
