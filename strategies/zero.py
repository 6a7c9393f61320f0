"""ZeRO stages 1 to 3, as DeepSpeed lays them out.

Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py, stage3.py and partition_parameters.py; the terms were checked
against bytes per parameter of the real engine (benchmarks/results). DeepSpeed keeps a separate fp32 copy of the
partition at every precision, fp32 included, and copies the partition's gradients to fp32 in the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from strategies.base import StateLayout, Strategy, largest_tensor_params
from strategies.estimate import CauseBytes
from strategies.job import Job
from strategies.memory.model_states import ADAM_STATE_BYTES, FP32_BYTES, Sharding
from strategies.model_spec import GroupRole, ModelSpec
from strategies.plan import Buckets, Plan
from strategies.units import ceil_div

MIN_BUCKET_ELEMENTS = 2**20
MAX_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default, in elements: never more than that."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Zero(Strategy):
    """One ZeRO stage."""

    stage: Literal[1, 2, 3]

    def sharding(self, data_parallel_size: int) -> Sharding:
        return Sharding(
            optimizer_states=data_parallel_size,
            gradients=data_parallel_size if self.stage >= 2 else 1,
            parameters=data_parallel_size if self.stage == 3 else 1,
        )

    def buckets(self, spec: ModelSpec, job: Job) -> Buckets:
        """Sized like transformers 5.24 fills "auto": hidden**2, 0.9 hidden**2 and 10 hidden, in elements.

        Source: transformers 5.24.0, integrations/deepspeed.py. The live window is two blocks or the largest tensor
        instead of DeepSpeed's 1e9 elements, which would keep any model below 1B parameters whole.
        """
        square = spec.hidden_size**2
        reduce = min(max(square, MIN_BUCKET_ELEMENTS), MAX_BUCKET_ELEMENTS)
        return Buckets(
            reduce_bucket_size=reduce,
            allgather_bucket_size=reduce,
            stage3_prefetch_bucket_size=square * 9 // 10,
            stage3_param_persistence_threshold=10 * spec.hidden_size,
            stage3_max_live_parameters=max(2 * spec.largest_block_params(), largest_tensor_params(spec)),
            overlap_comm=True,
        )

    def layout(self, spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int) -> StateLayout:
        if self.stage == 3:
            return _stage3_layout(spec, job=job, plan=plan, data_parallel_size=data_parallel_size)
        return _stage12_layout(self.stage, spec, job=job, plan=plan, data_parallel_size=data_parallel_size)


def _params_beyond_bucket(spec: ModelSpec, plan: Plan) -> int:
    """Return the parameters in tensors larger than the reduce bucket: stage 1 keeps their gradients until the step.

    They are reduced where they are instead of through the bucket. Seen in a trace of the real engine: 13.4 GiB for
    Llama-3.1-8B on 64 ranks, where the MLP, embedding and head exceed a bucket of hidden**2 elements.
    """
    limit = plan.buckets.reduce_bucket_size
    return sum(
        group.num_copies * tensor.num_params
        for group in spec.groups
        for tensor in group.tensors
        if tensor.num_params > limit
    )


def _head_params(spec: ModelSpec) -> int:
    """Return the parameters of the output head; a tied one is the embedding."""
    heads = [group.num_params for group in spec.groups if group.role is GroupRole.HEAD]
    return sum(heads) or spec.vocab_size * spec.hidden_size


def _step_copies(job: Job) -> int:
    """Return bytes per parameter of the copies in the step: flattened in its own format, and then in fp32.

    Source: deepspeed 0.19.8, runtime/zero/stage3.py, _prepare_fp32_grad_for_sub_group, and stage_1_and_2.py, step.
    """
    weight = job.precision.weight_bytes
    return FP32_BYTES + (weight if weight < FP32_BYTES else 0)


def _partitioned_states(num_params: int, data_parallel_size: int) -> CauseBytes:
    share = ceil_div(num_params, data_parallel_size)
    return CauseBytes(master_weights=FP32_BYTES * share, optimizer_states=ADAM_STATE_BYTES * share)


def _stage12_layout(
    stage: Literal[1, 2], spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int
) -> StateLayout:
    weight, params = job.precision.weight_bytes, spec.num_params
    share = ceil_div(params, data_parallel_size)
    largest = largest_tensor_params(spec)
    # Under accumulation stage 1 adds a block's new gradients to the kept ones only when its bucket is reduced.
    pending = largest + (spec.largest_block_params() if stage == 1 and plan.gradient_accumulation_steps > 1 else 0)
    if stage == 1 and plan.gradient_accumulation_steps == 1:
        pending = max(pending, _params_beyond_bucket(spec, plan))
    resident = CauseBytes(parameters=weight * params) + _partitioned_states(params, data_parallel_size)
    bucket_count = 2 if plan.buckets.overlap_comm else 1
    buckets = bucket_count * weight * plan.buckets.reduce_bucket_size
    # A rank keeps the whole gradient of every tensor that its partition touches: with many ranks more than its share.
    partition = max(share, largest)
    accumulated, new_partition = _accumulation_bytes(stage, plan, weight=weight, params=params, share=partition)
    stage1_buckets_stay = stage == 1 and plan.gradient_accumulation_steps > 1
    between = CauseBytes(gradients=accumulated, communication_buckets=buckets if stage1_buckets_stay else 0)
    return StateLayout(
        resident=resident,
        initialise=_stage12_initialise(weight, params=params, share=share),
        forward=between,
        backward_start=between,
        # The buckets are made with the first gradient, the head's.
        first_gradient=CauseBytes(gradients=accumulated + weight * _head_params(spec), communication_buckets=buckets),
        # The last rank's partition holds the last blocks, whose gradients come first: its buffer is made at once.
        first_reduction=CauseBytes(gradients=accumulated + new_partition, communication_buckets=buckets),
        backward_end=CauseBytes(
            gradients=accumulated + new_partition + weight * pending, communication_buckets=buckets
        ),
        # As in stage 3, beside the gradients themselves, which are freed afterwards.
        optimizer_step=CauseBytes(gradients=weight * partition, step_temporaries=_step_copies(job) * share),
        evaluation=CauseBytes(),
    )


def _accumulation_bytes(stage: Literal[1, 2], plan: Plan, *, weight: int, params: int, share: int) -> tuple[int, int]:
    """Return (bytes kept between micro batches, bytes the last backward adds): stage 1 keeps whole gradients."""
    if plan.gradient_accumulation_steps == 1:
        return 0, weight * share
    if stage == 1:
        return weight * params, 0
    return weight * share, weight * share


def _stage12_initialise(weight: int, *, params: int, share: int) -> CauseBytes:
    """Return the larger of two moments: flattening the weights, and making the fp32 partition from them."""
    flattening = CauseBytes(parameters=weight * params, step_temporaries=weight * params)
    masters = CauseBytes(
        parameters=weight * params, master_weights=FP32_BYTES * share, step_temporaries=FP32_BYTES * share
    )
    return max(flattening, masters, key=lambda causes: causes.total_bytes)


def _stage3_layout(spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int) -> StateLayout:
    weight, params = job.precision.weight_bytes, spec.num_params
    share = ceil_div(params, data_parallel_size)
    # The gradient partition and the reduce bucket are allocated at initialisation and stay.
    resident = CauseBytes(
        parameters=weight * share,
        gradients=weight * share,
        communication_buckets=weight * plan.buckets.reduce_bucket_size,
    ) + _partitioned_states(params, data_parallel_size)
    gathered = CauseBytes(gathered_parameters=weight * _gathered_elements(spec, plan))
    backward = gathered + CauseBytes(gradients=weight * largest_tensor_params(spec))
    return StateLayout(
        resident=resident,
        initialise=CauseBytes(parameters=weight * share, step_temporaries=2 * FP32_BYTES * share),
        forward=gathered,
        backward_start=gathered,
        first_gradient=gathered,
        first_reduction=gathered,
        backward_end=backward,
        # The partition's gradients are flattened into a copy, and 16-bit ones then widened to fp32.
        optimizer_step=CauseBytes(step_temporaries=_step_copies(job) * share),
        evaluation=gathered,
    )


def _gathered_elements(spec: ModelSpec, plan: Plan) -> int:
    """Return elements gathered at once: the live window and one prefetch, which is held flat and split meanwhile."""
    window = plan.buckets.stage3_max_live_parameters + 2 * plan.buckets.stage3_prefetch_bucket_size
    return min(window, 2 * spec.num_params)
