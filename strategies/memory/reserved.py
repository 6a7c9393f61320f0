"""From live tensors to what a device shows: holes in the caching allocator, and what lies beside it.

The allocator's holes were read off replays of traced runs (benchmarks/results/allocator_slack.json: 4 models, every
strategy, with and without activation checkpointing). Two of them explain nearly all that is reserved and not allocated:

- optimizer states appear at the end of the first step and settle in the space that activations have just left; the
  activations of the second step no longer fit there in one piece and take as much new space;
- the 16-bit logits are freed before the gradient of the fp32 ones is made, which needs twice their room and goes
  elsewhere.

Under DDP the states are large enough to fill the space whole, and no hole is left. TensorFlow's allocator was not
replayed: no hole is counted for it, and the upper end of the interval has to cover what there is.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.cluster import Cluster
from strategies.estimate import CauseBytes, MemoryProfile, Phase
from strategies.job import Job, LossImplementation
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Holes:
    """Shares of two tensors' bytes that stay reserved and unused."""

    settled_states: float
    narrow_logits: float


NO_HOLES = Holes(settled_states=0.0, narrow_logits=0.0)
ZERO_KEEPING_ACTIVATIONS = Holes(settled_states=0.35, narrow_logits=1.0)
"""Many small activations fill most of what the states cut up."""
ZERO_RECOMPUTING = Holes(settled_states=0.95, narrow_logits=0.95)
FSDP2 = Holes(settled_states=0.9, narrow_logits=0.9)
UNUSABLE_SHARE = 0.01
"""Of the allocated peak, lost to fragmentation on a device that is as small as it can be: 1.000 to 1.028, median 1.008
in the replays with expandable segments, which the trainer switches on; up to 1.19 with fixed ones."""
CONTEXT_BYTES = 800 * MIB
"""Device context, kernels and NCCL's buffers, outside torch's allocator: the middle of the 0.4 to 1.3 GiB seen in
published runs (1113 and 1343 MiB on V100 with nvidia-smi, transformers' performance documentation)."""


def reserved_bytes(memory: MemoryProfile, spec: ModelSpec, *, cluster: Cluster, job: Job, plan: Plan) -> int:
    """Return what the caching allocator holds for forward and backward on a device with room to spare.

    With expandable segments. Residuals against the replays are in docs/memory.md.
    """
    if cluster.gpu.is_cpu:  # which has no caching allocator
        return 0
    return max(
        phase.total_bytes + _hole_bytes(phase.causes, spec, job=job, plan=plan)
        for phase in memory.phases
        if phase.phase in (Phase.FORWARD, Phase.BACKWARD)
    )


def unusable_bytes(peak_allocated_bytes: int, *, cluster: Cluster) -> int:
    """Return what fragmentation keeps from use even when the allocator gives back all it can."""
    return 0 if cluster.gpu.is_cpu else round(peak_allocated_bytes * UNUSABLE_SHARE)


def context_bytes(cluster: Cluster) -> int:
    """Return what a process takes on its device beside the allocator."""
    return 0 if cluster.gpu.is_cpu else CONTEXT_BYTES


def _hole_bytes(causes: CauseBytes, spec: ModelSpec, *, job: Job, plan: Plan) -> int:
    holes = _holes(plan)
    room = causes.activations + causes.recomputed_block + causes.logits
    settled = holes.settled_states * min(causes.optimizer_states, room)
    has_narrow_logits = causes.logits > 0 and job.loss is LossImplementation.STANDARD
    narrow = (
        job.precision.compute_bytes * plan.micro_batch_size * job.seq_len * spec.vocab_size if has_narrow_logits else 0
    )
    return round(settled + holes.narrow_logits * min(narrow, causes.logits))


def _holes(plan: Plan) -> Holes:
    if plan.strategy in (StrategyName.DDP, StrategyName.MIRRORED):
        return NO_HOLES
    if plan.strategy is StrategyName.FSDP2:
        return FSDP2
    keeps_all = plan.activation_checkpointing is ActivationCheckpointing.NONE
    return ZERO_KEEPING_ACTIVATIONS if keeps_all else ZERO_RECOMPUTING
