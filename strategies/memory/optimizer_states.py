"""Optimizer states and the working copies of an update, by rule."""

from __future__ import annotations

from strategies.job import Job
from strategies.model_spec import ModelSpec
from strategies.units import ceil_div

FP32_BYTES = 4
ADAM_STATES = 2


def flat_state_bytes(job: Job, num_elements: int) -> int:
    """Return the bytes of the states of one flat fp32 tensor."""
    return ADAM_STATES * FP32_BYTES * num_elements


def step_copy_bytes(job: Job, num_elements: int) -> int:
    """Return the bytes of the working copies of one flat fp32 tensor's update."""
    return 0 if job.fused_optimizer else FP32_BYTES * num_elements


def shard_state_bytes(spec: ModelSpec, job: Job, data_parallel_size: int) -> int:
    """Return the bytes of the states of the first rank's shards, each tensor cut along its first dimension."""
    elements = sum(
        group.num_copies * ceil_div(tensor.shape[0], data_parallel_size) * (tensor.num_params // tensor.shape[0])
        for group in spec.groups
        for tensor in group.tensors
    )
    return ADAM_STATES * FP32_BYTES * elements
