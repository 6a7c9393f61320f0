"""summary.json: the outcome of a run, with predicted beside measured memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.meter import Measurement
from scaling.versions import versions
from scaling.watching.records import EvaluationRecord, Record, SaveFailureRecord, StepRecord
from scaling.watching.utilisation import Utilisation
from strategies.decision import Decision
from strategies.estimate import MemoryProfile
from strategies.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """summary.json: the outcome of a finished run."""

    model: str
    strategy: str
    world_size: int
    initial_weights: str
    steps: int
    first_loss: float
    final_loss: float
    final_eval_loss: float | None
    tokens: int
    """Trained on, all ranks."""
    train_time_s: float
    tokens_per_s: float
    """Median over the steps that were not metered, all ranks."""
    step_time_s: float
    """Median over the same steps."""
    predicted_step_time_s: float | None
    """From the plan, by what is known about the device's rates; None where nothing is."""
    mfu: float | None
    """Median over the same steps; None where the device's peak is not known."""
    predicted_peak_bytes: int
    """Live tensors of the rank that holds most, from the plan."""
    measured_peak_bytes: int | None
    """The same, measured; None where nothing was metered."""
    measured_over_predicted: float | None
    measured_peak_reserved_bytes: int | None
    """What the caching allocator held; None on a CPU."""
    metered_steps: int
    predicted: MemoryProfile
    measured: MemoryProfile | None
    """Highest moment of every phase that was metered, for the rank with the highest peak."""
    failed_saves: int
    """Checkpoints that could not be written."""
    final_model: str
    data_hash: str
    versions: dict[str, str]

    def lines(self) -> list[str]:
        """Return the outcome as lines to print."""
        evaluated = f", eval_loss {self.final_eval_loss:.4f}" if self.final_eval_loss is not None else ""
        losses = f"loss {self.first_loss:.4f} -> {self.final_loss:.4f}{evaluated}"
        return [
            f"{self.model} under {self.strategy} on {self.world_size} ranks, {self.initial_weights}",
            f"{self.steps} steps, {losses}, {self.tokens_per_s:,.0f} tokens/s",
            *self._time_lines(),
            self._memory_line(),
            *([f"checkpoints that could not be written: {self.failed_saves}"] if self.failed_saves else []),
            f"model in {self.final_model}, opened with from_pretrained and equal to the trained weights",
        ]

    def _time_lines(self) -> list[str]:
        if self.predicted_step_time_s is None or self.mfu is None:
            return []
        predicted, measured = format_seconds(self.predicted_step_time_s), format_seconds(self.step_time_s)
        return [f"step: predicted {predicted}, measured {measured} (median); MFU {self.mfu:.1%}"]

    def _memory_line(self) -> str:
        predicted = f"peak memory per rank: predicted {format_bytes(self.predicted_peak_bytes)}"
        if self.measured_peak_bytes is None or self.measured_over_predicted is None:
            return f"{predicted}, not measured"
        # TensorFlow's allocator counts in all of them.
        steps = self.metered_steps or self.steps
        measured = f"measured {format_bytes(self.measured_peak_bytes)} over {steps} steps"
        return f"{predicted}, {measured}: measured / predicted = {self.measured_over_predicted:.3f}"


def summarise(
    records: Sequence[Record],
    *,
    decision: Decision,
    initial_weights: str,
    measurement: Measurement | None,
    train_time_s: float,
    final: Path,
    data_hash: str,
    utilisation: Utilisation | None,
) -> Summary:
    """Return the summary of a finished run; ``measurement`` is that of the rank with the highest peak."""
    steps = [record for record in records if isinstance(record, StepRecord)]
    evaluations = [record for record in records if isinstance(record, EvaluationRecord)]
    metered_steps = measurement.num_steps if measurement else 0
    typical = steps[metered_steps:] or steps  # metering slows a step
    predicted = decision.estimate.peak_allocated_bytes
    measured = steps[-1].peak_allocated_bytes
    return Summary(
        model=decision.model,
        strategy=decision.plan.strategy.value,
        world_size=decision.cluster.gpus,
        initial_weights=initial_weights,
        steps=len(steps),
        first_loss=steps[0].loss,
        final_loss=steps[-1].loss,
        final_eval_loss=evaluations[-1].eval_loss if evaluations else None,
        tokens=len(steps) * decision.job.tokens_per_step,
        train_time_s=train_time_s,
        tokens_per_s=statistics.median(record.tokens_per_s for record in typical),
        step_time_s=statistics.median(record.step_time_s for record in typical),
        predicted_step_time_s=utilisation.predicted_step_s if utilisation else None,
        mfu=statistics.median(record.mfu for record in typical if record.mfu is not None) if utilisation else None,
        predicted_peak_bytes=predicted,
        measured_peak_bytes=measured,
        measured_over_predicted=measured / predicted if measured and predicted else None,
        measured_peak_reserved_bytes=measurement.peak_reserved_bytes if measurement else None,
        metered_steps=metered_steps,
        predicted=decision.estimate.memory,
        measured=measurement.device() if measurement else None,
        failed_saves=sum(isinstance(record, SaveFailureRecord) for record in records),
        final_model=str(final),
        data_hash=data_hash,
        versions=versions(),
    )
