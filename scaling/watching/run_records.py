"""A finished run as a line of the user's records: predicted beside measured, for `scaling calibrate --from-records`."""

from __future__ import annotations

from dataclasses import replace

from scaling.watching.summary import Summary
from strategies.learning.run_record import RunRecord
from strategies.learning.run_store import append_run

STEADY_STEPS = 2
"""The first step has no optimizer states yet: its peak is not what was predicted."""
FEWEST_TIMED_STEPS = 3
"""Fewer have no median that the first one does not move."""


def record_training(record: RunRecord, summary: Summary) -> None:
    """Append a finished run to the user's records; ``record``: made before it began."""
    append_run(_with_step_time(_with_peaks(record, summary), summary))


def _with_peaks(record: RunRecord, summary: Summary) -> RunRecord:
    """Return the record with the run's peaks, where the phase that is said to peak was metered in its steady state."""
    phases = {each.phase for each in summary.measured.phases} if summary.measured else set()
    num_counted_steps = summary.metered_steps or summary.steps  # of CUDA's and TensorFlow's allocators all of them
    is_comparable = summary.measured is None or summary.predicted.peak.phase in phases
    if num_counted_steps < STEADY_STEPS or not is_comparable:
        return record
    return replace(
        record,
        measured_allocated_bytes=summary.measured_peak_bytes,
        measured_reserved_bytes=summary.measured_peak_reserved_bytes,
    )


def _with_step_time(record: RunRecord, summary: Summary) -> RunRecord:
    num_timed_steps = summary.steps - summary.metered_steps
    if num_timed_steps < FEWEST_TIMED_STEPS:
        return record
    return replace(record, measured_step_s=summary.step_time_s, num_timed_steps=num_timed_steps)
