"""Optimizer states and the working copies of an update, by rule."""

from __future__ import annotations

from strategies.job import Job

FP32_BYTES = 4
ADAM_STATES = 2


def flat_state_bytes(job: Job, num_elements: int) -> int:
    """Return the bytes of the states of one flat fp32 tensor."""
    return ADAM_STATES * FP32_BYTES * num_elements


def step_copy_bytes(job: Job, num_elements: int) -> int:
    """Return the bytes of the working copies of one flat fp32 tensor's update."""
    return 0 if job.fused_optimizer else FP32_BYTES * num_elements
