"""FSDP2: a shard of everything on each rank; blocks are gathered when they run and reduced when their backward ends.

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py, followed block by block
as our own engine uses them (scaling/engines/fsdp2.py): every repeated block is a group, the rest of the model is the
root group, which stays gathered from forward to backward; gradients are reduced after every micro batch, or whole ones
wait for the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import final

from strategies.backward_states import that_may_peak
from strategies.base import NOTHING, StateLayout, Strategy
from strategies.estimate import CauseBytes
from strategies.fsdp2_groups import Formats, ShardedGroup, formats_of, shard_elements, sharded_groups
from strategies.fsdp2_passes import Passes, total_bytes
from strategies.job import Job, LossImplementation, Precision
from strategies.memory.model_states import Sharding
from strategies.memory.optimizer_states import shard_state_bytes, step_copy_bytes
from strategies.model_spec import ModelSpec
from strategies.parameter_order import tied_weight_elements
from strategies.plan import Buckets, OffloadDevice, Plan


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp2(Strategy):
    """Fully sharded data parallel, second generation."""

    def sharding(self, data_parallel_size: int) -> Sharding:
        return Sharding(
            parameters=data_parallel_size, gradients=data_parallel_size, optimizer_states=data_parallel_size
        )

    def buckets(self, spec: ModelSpec, job: Job) -> Buckets:
        """Return the largest block's size: FSDP2 has no bucket setting and reduces group by group."""
        elements = max(spec.largest_block_params(), 1)
        return Buckets.outside_deepspeed(elements)

    def layout(
        self, spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int, on_cpu: bool = False
    ) -> StateLayout:
        return _layout(
            spec,
            job,
            data_parallel_size,
            plan.reshard_after_forward,
            plan.gradient_accumulation_steps > 1,
            plan.gradient_accumulation_steps > 1 and not plan.sync_each_batch,
            plan.offload_param is not OffloadDevice.NONE,
            on_cpu,
        )


@cache
def _layout(
    spec: ModelSpec,
    job: Job,
    data_parallel_size: int,
    reshard: bool,
    accumulates: bool,
    whole_gradients: bool,
    offloads: bool,
    on_cpu: bool,
) -> StateLayout:
    formats = formats_of(job.precision)
    root, blocks = sharded_groups(spec, data_parallel_size)
    shard = sum(group.trained.shard for group in (root, *blocks))
    # Shards of earlier micro batches are there before backward; offloaded ones are never.
    keeps = (whole_gradients or not accumulates) and not offloads
    passes = Passes(
        spec,
        formats,
        root=root,
        blocks=blocks,
        reshard=reshard,
        keeps_gradients=keeps,
        whole_gradients=whole_gradients,
        loss_in_forward=job.loss is LossImplementation.FUSED,
    )
    gather, last_gather, start, end = passes.forward()
    backward_start, first_gradient, after_blocks = passes.backward()
    between = CauseBytes(
        gradients=formats.reduced * shard if accumulates and not whole_gradients and not offloads else 0
    )
    waiting = CauseBytes(gradients=passes.waiting_gradients)
    resident = CauseBytes(
        parameters=sum(map(formats.shard_bytes, (root, *blocks))),
        optimizer_states=shard_state_bytes(spec, job, data_parallel_size),
    )
    largest = max(
        shard_elements(tensor, data_parallel_size)
        for group in spec.groups
        for tensor in group.tensors
        if tensor.is_trained
    )
    step = CauseBytes(
        gradients=formats.reduced * shard,
        step_temporaries=max(
            step_copy_bytes(job, elements, largest=largest)
            for elements in _shards_by_optimizer_group(spec, data_parallel_size)
        ),
    )
    return StateLayout(
        resident=NOTHING if offloads else resident,
        initialise=_initialise(
            job.precision,
            formats,
            root=root,
            blocks=blocks,
            on_cpu=on_cpu,
            offloads=offloads,
            tied=tied_weight_elements(spec),
        ),
        forward=between + waiting + end,
        forward_start=between + waiting + start,
        forward_gather=between + waiting + gather,
        last_gather=between + waiting + last_gather,
        backward_start=between + backward_start,
        first_gradient=between + first_gradient,
        in_blocks=that_may_peak(replace(state, causes=between + state.causes) for state in passes.in_blocks()),
        embedding_backward=between + after_blocks,
        optimizer_step=NOTHING if offloads else step,
        evaluation=end,
        evaluation_start=start,
        evaluation_gather=gather,
        save=passes.save(data_parallel_size, saves_16_bit=job.precision.has_master_weights),
    )


def _initialise(
    precision: Precision,
    formats: Formats,
    *,
    root: ShardedGroup,
    blocks: Sequence[ShardedGroup],
    on_cpu: bool,
    offloads: bool,
    tied: int,
) -> CauseBytes:
    """Return the highest moment of sharding: groups come to the device whole, one after the other, the root last.

    Where the CPU is the device the model is there from the start; a tied head has had a weight of its own.
    """
    built = precision.weight_bytes
    waiting = sum(group.elements for group in (root, *blocks)) if on_cpu else 0
    shards, moments = 0, [CauseBytes(parameters=built * (waiting + tied) if on_cpu else 0)]
    for group in (*blocks, root):
        waiting -= group.elements if on_cpu else 0
        if on_cpu and built < formats.shard:
            widening = built * group.widening
            moments.append(CauseBytes(parameters=shards + built * waiting, step_temporaries=widening))
        shards += 0 if offloads else formats.shard_bytes(group)
        whole = formats.whole_bytes(group)
        moments.append(CauseBytes(parameters=shards + built * waiting, step_temporaries=whole))
    return max(moments, key=total_bytes)


def _shards_by_optimizer_group(spec: ModelSpec, data_parallel_size: int) -> list[int]:
    sums = [0, 0]
    for group in spec.groups:
        for tensor in (each for each in group.tensors if each.is_trained):
            index = 1 if len(tensor.shape) < 2 or "bias" in tensor.name.rpartition(".")[2] else 0
            sums[index] += group.num_copies * shard_elements(tensor, data_parallel_size)
    return sums
