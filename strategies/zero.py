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
from strategies.model_spec import ModelSpec
from strategies.plan import Buckets, Plan
from strategies.units import ceil_div
from strategies.zero_stage12 import stage12_layout

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

    def layout(
        self, spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int, on_cpu: bool = False
    ) -> StateLayout:
        if self.stage == 3:
            return _stage3_layout(spec, job=job, plan=plan, data_parallel_size=data_parallel_size)
        return stage12_layout(spec, job=job, plan=plan, data_parallel_size=data_parallel_size, stage=self.stage)


def _step_copies(job: Job) -> int:
    """Return bytes per parameter of the copies in the step: flattened in its own format, and then in fp32.

    Source: deepspeed 0.19.8, runtime/zero/stage3.py, _prepare_fp32_grad_for_sub_group, and stage_1_and_2.py, step.
    """
    weight = job.precision.weight_bytes
    return FP32_BYTES + (weight if weight < FP32_BYTES else 0)


def _partitioned_states(num_params: int, data_parallel_size: int) -> CauseBytes:
    share = ceil_div(num_params, data_parallel_size)
    return CauseBytes(master_weights=FP32_BYTES * share, optimizer_states=ADAM_STATE_BYTES * share)


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
