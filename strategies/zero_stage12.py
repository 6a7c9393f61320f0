"""ZeRO stages 1 and 2 as DeepSpeed lays them out: flat weights, a partition of states, gradient buckets.

Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py; a name in parentheses is the function followed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from strategies.backward_states import that_may_peak
from strategies.base import BlockState, StateLayout
from strategies.estimate import CauseBytes
from strategies.job import Job
from strategies.memory.optimizer_states import flat_state_bytes, master_element_bytes, step_copy_bytes
from strategies.model_spec import ModelSpec
from strategies.parameter_order import OptimizerGroup, parameter_order
from strategies.plan import Buckets, OffloadDevice, Plan
from strategies.zero_gradients import Moment, Reduction, gradient_elements
from strategies.zero_partitions import partition_elements, ranks_that_may_hold_most, touched_elements

NORM_BYTES = 8
"""Gradient norms are taken of a double-precision copy, tensor by tensor (get_grad_norm_direct)."""


def stage12_layout(spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int, stage: int) -> StateLayout:
    """Return the layout of stage 1 or 2."""
    offloads = plan.offload_optimizer is not OffloadDevice.NONE
    return _layout(spec, job, plan.buckets, plan.gradient_accumulation_steps > 1, data_parallel_size, stage, offloads)


@cache
def _layout(
    spec: ModelSpec,
    job: Job,
    buckets: Buckets,
    accumulates: bool,
    data_parallel_size: int,
    stage: int,
    offloads: bool,
) -> StateLayout:
    weight, master = job.precision.weight_bytes, master_element_bytes(job.precision)
    groups = parameter_order(spec).groups
    # Frozen weights are in no group of the optimizer: every rank keeps them as they are.
    frozen = CauseBytes(parameters=weight * (spec.num_params - spec.num_trained_params))
    shares = [partition_elements(group, data_parallel_size) for group in groups]
    flat = [share * data_parallel_size for share in shares]
    reduction = Reduction(
        data_parallel_size=data_parallel_size,
        bucket_elements=buckets.reduce_bucket_size,
        num_buckets=2 if buckets.overlap_comm else 1,
        is_stage_2=stage == 2,
        in_backward=stage == 2 or buckets.overlap_comm,
        accumulates=accumulates,
        offloads=offloads,
        scratch_per_element=NORM_BYTES // weight,
    )
    elements = gradient_elements(spec, reduction)
    resident = CauseBytes(
        parameters=weight * sum(flat),
        master_weights=master * sum(shares),
        optimizer_states=sum(flat_state_bytes(job, share) for share in shares),
    )
    if offloads:
        # One gradient's buffer, for those that come back from the host (temp_grad_buffer_for_gpu_offload).
        largest = max(size for group in groups for size in group.sizes)
        resident = CauseBytes(parameters=weight * sum(flat), communication_buckets=weight * largest)
    between = _moment_bytes(elements.between, weight)
    return StateLayout(
        resident=frozen + resident,
        initialise=frozen
        + _initialise(groups, shares=shares, flat=flat, weight=weight, master=0 if offloads else master),
        forward=between,
        backward_start=between,
        first_gradient=_moment_bytes(elements.first_gradient, weight),
        after_head=_moment_bytes(elements.after_head, weight),
        in_blocks=that_may_peak(
            BlockState(
                num_done=each.num_done,
                new_gradient=weight * each.new_gradient,
                causes=_moment_bytes(each.moment, weight),
            )
            for each in elements.in_blocks
        ),
        embedding_backward=_moment_bytes(elements.after_blocks, weight),
        optimizer_step=CauseBytes()
        if offloads
        else max(
            (
                _step(spec, job, shares=shares, rank=rank, data_parallel_size=data_parallel_size)
                for rank in ranks_that_may_hold_most(spec, data_parallel_size)
            ),
            key=lambda causes: causes.total_bytes,
        ),
        evaluation=CauseBytes(),
    )


def _moment_bytes(moment: Moment, weight: int) -> CauseBytes:
    return CauseBytes(gradients=weight * moment.gradients, communication_buckets=weight * moment.buckets)


def _initialise(
    groups: Sequence[OptimizerGroup], *, shares: Sequence[int], flat: Sequence[int], weight: int, master: int
) -> CauseBytes:
    """Return the highest moment: flattening a group beside the model's own tensors, or making its fp32 partition."""
    moments, done, masters = [], 0, 0
    left = sum(group.num_params for group in groups)
    for group, share, aligned in zip(groups, shares, flat, strict=True):
        moments.append(CauseBytes(parameters=weight * (left + done + aligned), master_weights=master * masters))
        left, done = left - group.num_params, done + aligned
        # The partition is cloned in its own format and widened from that.
        clone = weight * share if weight != master else 0
        masters += share
        moments.append(
            CauseBytes(parameters=weight * (left + done), master_weights=master * masters, step_temporaries=clone)
        )
    # Gradients of zeros for every group, to make the optimizer's states (initialize_optimizer_states).
    moments.append(
        CauseBytes(parameters=weight * done, master_weights=master * masters, step_temporaries=master * masters)
    )
    return max(moments, key=lambda causes: causes.total_bytes)


def _step(spec: ModelSpec, job: Job, *, shares: Sequence[int], rank: int, data_parallel_size: int) -> CauseBytes:
    """Return the highest moment of the step: a norm, or a group's gradients flattened, widened and applied."""
    weight, master = job.precision.weight_bytes, master_element_bytes(job.precision)
    groups = parameter_order(spec).groups
    pieces = [_pieces(group, share, rank=rank) for group, share in zip(groups, shares, strict=True)]
    touched = sum(touched_elements(group, data_parallel_size, rank=rank) for group in groups)
    padding = sum(share - sum(parts) for share, parts in zip(shares, pieces, strict=True))
    gradients = weight * (touched + padding)
    temporaries = [NORM_BYTES * max((part for parts in pieces for part in parts), default=0)]
    for share, parts in zip(shares, pieces, strict=True):
        is_one_piece = len(parts) + (sum(parts) < share) == 1
        flat = 0 if is_one_piece else weight * share
        widened = master * share if weight < master else 0
        temporaries.append(flat + widened)
        temporaries.append((widened or flat) + step_copy_bytes(job, share))
    return CauseBytes(gradients=gradients, step_temporaries=max(temporaries))


def _pieces(group: OptimizerGroup, share: int, *, rank: int) -> list[int]:
    """Return the elements of each tensor that lie in a rank's partition."""
    start, end = share * rank, share * (rank + 1)
    first = max(bisect_right(group.offsets, start) - 1, 0)
    last = min(bisect_left(group.offsets, end), len(group.sizes))
    bounds = [min(max(offset, start), end) for offset in group.offsets[first : last + 1]]
    return [after - before for before, after in pairwise(bounds) if after > before]
