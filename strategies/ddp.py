"""DDP: everything replicated; gradients live in the reducer's buckets.

Source: torch 2.13, torch/csrc/distributed/c10d/reducer.cpp, with ``gradient_as_bucket_view=True``; for 16-bit weights
our own engine's fp32 masters (scaling/engines/ddp.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from strategies.base import StateLayout, Strategy, largest_tensor_params
from strategies.estimate import CauseBytes
from strategies.job import Job
from strategies.memory.model_states import FP32_BYTES, Sharding, model_states
from strategies.model_spec import ModelSpec
from strategies.plan import Buckets, Plan
from strategies.units import MIB

BUCKET_BYTES = 25 * MIB
"""torch's ``bucket_cap_mb`` default."""
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
        return Buckets(
            reduce_bucket_size=elements,
            allgather_bucket_size=elements,
            stage3_prefetch_bucket_size=0,
            stage3_param_persistence_threshold=0,
            stage3_max_live_parameters=0,
            overlap_comm=True,
        )

    def layout(
        self, spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int, on_cpu: bool = False
    ) -> StateLayout:
        states = model_states(spec.num_params, sharding=self.sharding(data_parallel_size), precision=job.precision)
        # The buckets are made once and stay: gradients are views of them, so they are resident.
        resident = CauseBytes(
            parameters=states.parameters,
            gradients=states.gradients,
            master_weights=states.master_weights,
            optimizer_states=states.optimizer_states,
        )
        in_flight = CauseBytes(gradients=job.precision.weight_bytes * largest_tensor_params(spec))
        # With 16-bit weights the step widens gradients to fp32, a chunk at a time.
        chunk = min(spec.num_params, max(spec.num_params // MASTER_CHUNKS, largest_tensor_params(spec)))
        fp32_gradients = FP32_BYTES * chunk if job.precision.has_master_weights else 0
        return StateLayout(
            resident=resident,
            initialise=CauseBytes(
                parameters=states.parameters, gradients=states.gradients, master_weights=states.master_weights
            ),
            forward=CauseBytes(),
            backward_start=CauseBytes(),
            first_gradient=CauseBytes(),
            first_reduction=CauseBytes(),
            backward_end=in_flight,
            optimizer_step=CauseBytes(step_temporaries=fp32_gradients),
            evaluation=CauseBytes(),
        )
