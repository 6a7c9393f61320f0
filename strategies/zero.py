"""ZeRO stages 1 to 3, as DeepSpeed lays them out.

Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py, stage3.py and partition_parameters.py; the terms were checked
against bytes per parameter of the real engine (benchmarks/results). DeepSpeed keeps a separate fp32 copy of the
partition at every precision, fp32 included, and copies the partition's gradients to fp32 in the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from strategies.base import StateLayout, Strategy, largest_tensor_params
from strategies.job import Job
from strategies.memory.model_states import Sharding
from strategies.model_spec import ModelSpec
from strategies.plan import Buckets, Plan
from strategies.zero_stage3 import stage3_layout
from strategies.zero_stage12 import stage12_layout

MIN_BUCKET_ELEMENTS = 2**20
MAX_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default, in elements: never more than that."""
MESSAGES_PER_PASS = 64
"""Parameters should not need more buckets than that where the hidden size is small for the model (T5-11B: 1024)..."""
LARGE_ENOUGH_ELEMENTS = 2**24
"""...but for buckets of 32 MiB, which fill any link: torch's DDP has 25 MiB by default."""


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

        Source: transformers 5.24.0, integrations/deepspeed.py. Buckets that would be many small messages are larger.
        The live window is two blocks or the largest tensor
        instead of DeepSpeed's 1e9 elements, which would keep any model below 1B parameters whole.
        """
        square = spec.hidden_size**2
        few_messages = min(spec.num_params // MESSAGES_PER_PASS, LARGE_ENOUGH_ELEMENTS)
        reduce = min(max(square, few_messages, MIN_BUCKET_ELEMENTS), MAX_BUCKET_ELEMENTS)
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
            return stage3_layout(spec, job=job, plan=plan, data_parallel_size=data_parallel_size, on_cpu=on_cpu)
        return stage12_layout(spec, job=job, plan=plan, data_parallel_size=data_parallel_size, stage=self.stage)
