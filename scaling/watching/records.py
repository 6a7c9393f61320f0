"""The lines of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One line of metrics.jsonl after an optimizer step. Times are the main rank's and add up to ``step_time_s``."""

    step: int
    """Optimizer steps done."""
    loss: float
    """Nats per token, or sample, over the global batch, before the update."""
    grad_norm: float
    """Global 2-norm before clipping."""
    grad_norm_clipped: float | None
    """The same after clipping; None where the norm is not finite."""
    lr: float
    """The run's learning rate in this step."""
    lr_groups: tuple[float, ...]
    """That of every parameter group, those with weight decay first."""
    skipped: bool = False
    """Whether the update was left out because a gradient was not finite; the schedule does not advance then."""
    loss_scale: float | None = None
    """What the loss was multiplied with; None where nothing is scaled."""
    tokens_per_s: float
    """Tokens of the global batch, all ranks, over the step's time."""
    mfu: float | None
    """Model FLOPs, 6 N + 12 L H Q T a token, over the devices' dense 16-bit peak; None where that is not known."""
    step_time_s: float
    data_time_s: float
    """Waiting for batches."""
    forward_time_s: float | None
    """None under TensorFlow, as the next two: its step is one graph, which is in ``other_time_s``."""
    backward_time_s: float | None
    """With the reduction of gradients, and with waiting for slower ranks in it."""
    optimizer_time_s: float | None
    """Norm, clipping, update, and what the strategy gathers after it."""
    other_time_s: float
    """What is left: what ranks tell each other beside the loss, and Python."""
    slowest_data_time_s: float
    """Waiting for batches on the rank that waited longest."""
    epoch: float
    """Passes over the data so far."""
    peak_allocated_bytes: int | None
    """Highest so far on any rank; on a CPU over the metered steps; None where none was metered."""
    peak_reserved_bytes: int | None
    """Highest that the caching allocator of any rank has held so far; None on a CPU, which has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGradient:
    """Gradient of one layer over the global batch, before clipping."""

    grad_norm: float
    """2-norm."""
    grad_max: float
    """Largest absolute element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """One line of metrics.jsonl after a step in which layers were looked at."""

    step: int
    layers: Mapping[str, LayerGradient]
    """By module; one entry for each repeated block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One line of metrics.jsonl after an evaluation."""

    step: int
    eval_loss: float
    """Nats per token, or sample, whichever the task sums over; labels as they are, not smoothed."""
    eval_tokens: int
    """Tokens, or samples, that were judged."""
    eval_time_s: float
    eval_metrics: Mapping[str, float] = field(default_factory=dict)
    """The task's own, such as accuracy, over the same tokens or samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailureRecord:
    """One line of metrics.jsonl for a checkpoint that could not be written."""

    step: int
    """Whose checkpoint it would have been."""
    save_error: str
    """What went wrong."""


Record = StepRecord | LayerRecord | EvaluationRecord | SaveFailureRecord
