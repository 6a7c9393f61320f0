"""Optimizer states and the working copies of an update, by rule.

Sources: torch 2.13, optim/adam.py, sgd.py and _adafactor.py; bitsandbytes, optim/optimizer.py, for 8-bit Adam; Chen et
al. 2023, arXiv:2302.06675, algorithm 2, for Lion; Shazeer and Stern 2018, arXiv:1804.04235, algorithm 4, for Adafactor.
"""

from __future__ import annotations

from functools import cache
from math import prod

from strategies.job import Job, OptimizerName, Precision
from strategies.model_spec import ModelSpec
from strategies.units import ceil_div

FP32_BYTES = 4
ADAM_STATES = 2
SMALLEST_8_BIT_TENSOR = 4096
"""Elements below which bitsandbytes keeps fp32 states (min_8bit_size)."""
ELEMENTS_PER_SCALE = 256
"""Of an 8-bit state, per fp32 scale (blockwise quantization)."""


def state_element_bytes(precision: Precision) -> int:
    """Return the bytes of one number of a state: that of the weights that are updated."""
    return 2 if precision is Precision.BF16_PURE else FP32_BYTES


def master_element_bytes(precision: Precision) -> int:
    """Return the bytes of one number of the copy that ZeRO updates, which it keeps at every precision."""
    return state_element_bytes(precision)


def tensor_state_bytes(optimizer: OptimizerName, shape: tuple[int, ...], element: int) -> int:
    """Return the bytes of the states of one tensor (or shard) of ``shape``, ``element`` bytes a number."""
    elements = prod(shape)
    match optimizer:
        case OptimizerName.ADAMW:
            return ADAM_STATES * element * elements
        case OptimizerName.ADAMW_8BIT:
            if elements < SMALLEST_8_BIT_TENSOR:
                return ADAM_STATES * FP32_BYTES * elements
            return ADAM_STATES * (elements + FP32_BYTES * ceil_div(elements, ELEMENTS_PER_SCALE))
        case OptimizerName.SGD | OptimizerName.LION:
            return element * elements
        case OptimizerName.ADAFACTOR:
            if len(shape) < 2 or not elements:
                return element * elements
            return element * (elements // shape[-1] + elements // shape[-2])


def flat_state_bytes(job: Job, elements: int) -> int:
    """Return the bytes of the states of one flat partition, which has lost its shape (so Adafactor sums nothing)."""
    return tensor_state_bytes(job.optimizer, (elements,), state_element_bytes(job.precision))


@cache
def shard_state_bytes(spec: ModelSpec, job: Job, data_parallel_size: int) -> int:
    """Return the bytes of the states of the first rank's shards, each tensor cut along its first dimension."""
    element = state_element_bytes(job.precision)
    return sum(
        group.num_copies * tensor_state_bytes(job.optimizer, (ceil_div(rows, data_parallel_size), *row), element)
        for group in spec.groups
        for tensor in group.tensors
        if tensor.is_trained
        for rows, *row in [tensor.shape or (1,)]
    )


def step_copy_bytes(job: Job, elements: int, *, largest: int | None = None) -> int:
    """Return the bytes of the working copies while ``elements`` are updated in one call.

    ``largest``: elements of the largest tensor among them; None where they are one tensor.
    Without fused kernels AdamW holds a square root of all second moments, SGD the gradients with decay, Adafactor all
    updates, Lion the update of one tensor twice. Adafactor has no fused kernel: it goes tensor by tensor instead.
    """
    element = state_element_bytes(job.precision)
    one_tensor = element * (elements if largest is None else largest)
    match job.optimizer:
        case OptimizerName.ADAFACTOR:
            return one_tensor if job.fused_optimizer else element * elements
        case OptimizerName.ADAMW | OptimizerName.SGD:
            return 0 if job.fused_optimizer else element * elements
        case OptimizerName.LION:
            return 0 if job.fused_optimizer else 2 * one_tensor
        case OptimizerName.ADAMW_8BIT:
            return 0
