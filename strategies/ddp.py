"""DDP: everything replicated; gradients live in the reducer's buckets.

Source: torch 2.13, torch/csrc/distributed/c10d/reducer.cpp, with ``gradient_as_bucket_view=True``; for 16-bit weights
our own engine's fp32 masters (scaling/engines/ddp.py). One rank trains without the reducer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import final

from strategies.backward_states import growing_gradients
from strategies.base import NOTHING, BlockState, StateLayout, Strategy, largest_trained_params
from strategies.estimate import CauseBytes
from strategies.job import Job
from strategies.memory.model_states import FP32_BYTES, Sharding
from strategies.memory.optimizer_states import shard_state_bytes, step_copy_bytes
from strategies.model_spec import ModelSpec
from strategies.parameter_order import ParameterOrder, parameter_order, tied_weight_elements
from strategies.plan import Buckets, Plan
from strategies.units import MIB

BUCKET_BYTES = 25 * MIB
"""torch's ``bucket_cap_mb`` default."""
BROADCAST_BYTES = 250 * MIB
"""Of the flat copies in which the first rank's weights are sent to the others (``broadcast_bucket_size``)."""
BROADCASTS_IN_FLIGHT = 2
MASTER_CHUNKS = 16
"""Parts in which the gradients of 16-bit weights are widened to fp32 for the step: our own engine's choice."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ddp(Strategy):
    """Distributed data parallel."""

    def sharding(self, data_parallel_size: int) -> Sharding:
        return Sharding(parameters=1, gradients=1, optimizer_states=1)

    def buckets(self, spec: ModelSpec, job: Job) -> Buckets:
        elements = BUCKET_BYTES // job.precision.weight_bytes
        return Buckets.outside_deepspeed(elements)

    def layout(
        self, spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int, on_cpu: bool = False
    ) -> StateLayout:
        if data_parallel_size == 1:
            return _alone(spec, job, on_cpu, plan.gradient_accumulation_steps > 1)
        return _layout(spec, job, on_cpu)


@cache
def _layout(spec: ModelSpec, job: Job, on_cpu: bool) -> StateLayout:
    weight = job.precision.weight_bytes
    order, largest = parameter_order(spec), largest_trained_params(spec)
    # The buckets are made once and stay: gradients are views of them, so they are resident.
    gradients = CauseBytes(gradients=weight * spec.num_trained_params)
    made = _weights(spec, job) + gradients
    sent = CauseBytes(parameters=weight * spec.num_params, communication_buckets=_broadcast_bytes(spec, weight))
    return StateLayout(
        resident=made + CauseBytes(optimizer_states=shard_state_bytes(spec, job, 1)),
        initialise=max(made, sent, _built(spec, job, on_cpu), key=lambda causes: causes.total_bytes),
        forward=NOTHING,
        backward_start=NOTHING,
        first_gradient=CauseBytes(gradients=weight * order.head_elements),
        in_blocks=_added_to(CauseBytes(gradients=weight * order.tied_elements), spec),
        embedding_backward=_at_the_end(order, weight),
        optimizer_step=CauseBytes(step_temporaries=_step_bytes(spec, job, largest=largest)),
        evaluation=NOTHING,
    )


@cache
def _alone(spec: ModelSpec, job: Job, on_cpu: bool, accumulates: bool) -> StateLayout:
    """Return the layout of one rank: no reducer, and gradients only from backward to the end of the step."""
    weight, params = job.precision.weight_bytes, spec.num_trained_params
    order, largest = parameter_order(spec), largest_trained_params(spec)
    all_gradients = CauseBytes(gradients=weight * params)
    # From the second micro batch on those of the first are there, and new ones are added to them one by one.
    kept = all_gradients if accumulates else NOTHING
    made = _weights(spec, job)
    tied = CauseBytes(gradients=weight * order.tied_elements)
    at_the_end = _at_the_end(order, weight)
    step = CauseBytes(step_temporaries=_step_bytes(spec, job, largest=largest))
    return StateLayout(
        resident=made + CauseBytes(optimizer_states=shard_state_bytes(spec, job, 1)),
        initialise=max(made, _built(spec, job, on_cpu), key=lambda causes: causes.total_bytes),
        forward=kept,
        backward_start=kept,
        first_gradient=kept + CauseBytes(gradients=weight * order.head_elements),
        in_blocks=_added_to(kept + tied, spec) if accumulates else growing_gradients(order, weight),
        embedding_backward=all_gradients + (at_the_end if accumulates else tied + tied),
        optimizer_step=all_gradients + step,
        evaluation=NOTHING,
    )


def _added_to(causes: CauseBytes, spec: ModelSpec) -> tuple[BlockState, ...]:
    """Return the states of a backward whose gradients are added to others that are there: one lives beside them."""
    return tuple(
        BlockState(num_done=num_done, new_gradient=None, causes=causes, counts_new_gradient=False)
        for num_done in sorted({0, spec.num_trained_layers - 1} if spec.num_trained_layers else ())
    )


def _at_the_end(order: ParameterOrder, weight: int) -> CauseBytes:
    """Return the embedding's gradient: of a tied weight those as head and as embedding, and their sum."""
    return CauseBytes(gradients=weight * (3 * order.tied_elements or order.embedding_elements))


def _weights(spec: ModelSpec, job: Job) -> CauseBytes:
    return CauseBytes(
        parameters=job.precision.weight_bytes * spec.num_params,
        master_weights=FP32_BYTES * spec.num_trained_params if job.precision.has_master_weights else 0,
    )


def _broadcast_bytes(spec: ModelSpec, weight: int) -> int:
    """Return the most that flat copies of weights hold on their way to the other ranks, before gradients are there.

    Of a model with few trained weights that may be more than masters and gradients.
    """
    copies = [0]
    for tensor in spec.tensors():
        if copies[-1] >= BROADCAST_BYTES:
            copies.append(0)
        copies[-1] += weight * tensor.num_params
    return max(sum(copies[index : index + BROADCASTS_IN_FLIGHT]) for index in range(len(copies)))


def _built(spec: ModelSpec, job: Job, on_cpu: bool) -> CauseBytes:
    """Return the model as it is built, where that is on the device: a tied weight is made twice."""
    tied = tied_weight_elements(spec)
    return CauseBytes(parameters=job.precision.weight_bytes * (spec.num_params + tied)) if on_cpu else NOTHING


def _step_bytes(spec: ModelSpec, job: Job, *, largest: int) -> int:
    """Return the working copies of the step; with 16-bit weights gradients are widened to fp32, a chunk at a time."""
    if not job.precision.has_master_weights:
        group = max(each.num_params for each in parameter_order(spec).groups)
        return step_copy_bytes(job, group, largest=largest)
    params = spec.num_trained_params
    chunk = min(params, max(params // MASTER_CHUNKS, largest))
    return FP32_BYTES * chunk + step_copy_bytes(job, chunk, largest=largest)
