"""TensorFlow's `MirroredStrategy`: everything on every GPU; nothing is shared out.

Our engine (scaling/tensorflow/mirrored.py) keeps fp32 variables, the optimizer's states beside them, and, where micro
batches add up, one accumulator a variable. Gradients are fp32 under every policy: what is cast to 16 bits is cast again
where it is used, and the gradient of a cast is the cast of the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import final

from strategies.backward_states import growing_gradients
from strategies.base import NOTHING, BlockState, StateLayout, Strategy, largest_tensor_params
from strategies.estimate import CauseBytes
from strategies.job import Job
from strategies.memory.model_states import FP32_BYTES, Sharding
from strategies.memory.optimizer_states import shard_state_bytes
from strategies.model_spec import ModelSpec
from strategies.parameter_order import parameter_order
from strategies.plan import Buckets, Plan


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored(Strategy):
    """Data parallel over the GPUs of one node, in one process."""

    def sharding(self, data_parallel_size: int) -> Sharding:
        return Sharding(parameters=1, gradients=1, optimizer_states=1)

    def buckets(self, spec: ModelSpec, job: Job) -> Buckets:
        # All gradients travel as one flat tensor: see `_step`.
        return Buckets.outside_deepspeed(spec.num_params)

    def layout(
        self, spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int, on_cpu: bool = False
    ) -> StateLayout:
        state_bytes = shard_state_bytes(spec, job, 1)
        return _layout(spec, state_bytes, data_parallel_size > 1, plan.gradient_accumulation_steps > 1)


@cache
def _layout(spec: ModelSpec, state_bytes: int, is_reduced: bool, accumulates: bool) -> StateLayout:
    order, params = parameter_order(spec), spec.num_params
    gradients = CauseBytes(gradients=FP32_BYTES * params)
    accumulators = CauseBytes(gradient_accumulation=FP32_BYTES * params) if accumulates else NOTHING
    resident = accumulators + CauseBytes(parameters=FP32_BYTES * params, optimizer_states=state_bytes)
    tied = CauseBytes(gradients=FP32_BYTES * order.tied_elements)
    at_the_end = CauseBytes(gradients=FP32_BYTES * (3 * order.tied_elements or order.embedding_elements))
    return StateLayout(
        resident=resident,
        initialise=resident,
        forward=NOTHING,
        backward_start=NOTHING,
        first_gradient=CauseBytes(gradients=FP32_BYTES * order.head_elements),
        in_blocks=_one_at_a_time(tied, spec) if accumulates else growing_gradients(order, FP32_BYTES),
        embedding_backward=at_the_end if accumulates else gradients + tied + tied,
        optimizer_step=_step(spec, is_reduced=is_reduced),
        evaluation=NOTHING,
    )


def _one_at_a_time(causes: CauseBytes, spec: ModelSpec) -> tuple[BlockState, ...]:
    """Return the states of a backward whose gradients are added to accumulators, and gone, as they come."""
    return tuple(
        BlockState(num_done=num_done, new_gradient=None, causes=causes, counts_new_gradient=False)
        for num_done in sorted({0, spec.num_layers - 1})
    )


def _step(spec: ModelSpec, *, is_reduced: bool) -> CauseBytes:
    """Return what the reduction and the update hold at most.

    All gradients are copied into one flat tensor, which is summed over the replicas and cut into gradients again.
    Source: tensorflow 2.21, distribute/cross_device_utils.py, CollectiveReplicaLauncher.batch_all_reduce, with the
    default of ``bytes_per_pack``, which makes one pack; NcclAllReduce(num_packs=1) does the same. One replica reduces
    nothing; with accumulators its clipped gradients are copies of them. The update's kernel makes nothing, decay a copy
    of the weight.
    """
    whole = FP32_BYTES * spec.num_params
    return CauseBytes(
        gradients=whole,
        communication_buckets=whole if is_reduced else 0,
        step_temporaries=FP32_BYTES * largest_tensor_params(spec),
    )
