"""FSDP2: a shard of everything on each rank; blocks are gathered when they run and reduced when their backward ends.

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py, followed block by block
as our own engine uses them (scaling/engines/fsdp2.py): every repeated block is a group, the rest of the model is the
root group, which stays gathered from forward to backward; gradients are reduced after every micro batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

from strategies.base import StateLayout, Strategy
from strategies.estimate import CauseBytes
from strategies.job import Job, Precision
from strategies.memory.model_states import FP32_BYTES, Sharding
from strategies.memory.optimizer_states import shard_state_bytes, step_copy_bytes
from strategies.model_spec import GroupRole, ModelSpec, ParameterTensor
from strategies.parameter_order import parameter_order
from strategies.plan import Buckets, OffloadDevice, Plan
from strategies.units import ceil_div


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
        return _layout(
            spec,
            job,
            data_parallel_size,
            plan.reshard_after_forward,
            plan.gradient_accumulation_steps > 1,
            plan.offload_param is not OffloadDevice.NONE,
            on_cpu,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedGroup:
    """Parameters that are gathered as one."""

    elements: int
    shard: int
    """Elements that a rank keeps: of each tensor its first dimension divided by the ranks, rounded up."""
    gathered: int
    """Elements of the gathered group, padding included."""
    last: int
    """Elements of the last tensor: a loop variable refers to its gradient to the end of foreach_reduce."""
    widening: int
    """Most pairs of bytes while 16-bit tensors become fp32 one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """Bytes of one element."""

    shard: int
    compute: int
    reduced: int

    @property
    def casts(self) -> bool:
        """Whether shards are cast, into a flat copy, before they are gathered."""
        return self.compute != self.shard


def formats_of(precision: Precision) -> Formats:
    """Return the formats of a precision: fp32 shards, weights gathered in the format of the computation."""
    if precision is Precision.BF16_PURE:
        return Formats(shard=2, compute=2, reduced=2)
    return Formats(shard=FP32_BYTES, compute=precision.compute_bytes, reduced=FP32_BYTES)


@cache
def sharded_groups(spec: ModelSpec, data_parallel_size: int) -> tuple[ShardedGroup, tuple[ShardedGroup, ...]]:
    """Return the root group, and the blocks in the order in which they run."""
    root: list[ParameterTensor] = []
    blocks: list[ShardedGroup] = []
    stack: dict[int, list[ParameterTensor]] = {}
    for group in spec.groups:
        if group.role is GroupRole.BLOCK:
            for layer in group.layers:
                stack.setdefault(layer, []).extend(group.tensors)
        else:
            blocks.extend(_group(stack[layer], data_parallel_size) for layer in sorted(stack))
            stack = {}
            root.extend(group.tensors)
    blocks.extend(_group(stack[layer], data_parallel_size) for layer in sorted(stack))
    return _group(root, data_parallel_size), tuple(blocks)


def _group(tensors: Sequence[ParameterTensor], data_parallel_size: int) -> ShardedGroup:
    shard = sum(shard_elements(tensor, data_parallel_size) for tensor in tensors)
    elements, before, widening = sum(tensor.num_params for tensor in tensors), 0, 0
    for tensor in tensors:
        widening = max(widening, 2 * (before + tensor.num_params) + elements - before)
        before += tensor.num_params
    return ShardedGroup(
        elements=elements,
        shard=shard,
        gathered=shard * data_parallel_size,
        last=tensors[-1].num_params,
        widening=widening,
    )


def shard_elements(tensor: ParameterTensor, data_parallel_size: int) -> int:
    """Return the elements of the first rank's shard, which is the largest."""
    rows = tensor.shape[0]
    return ceil_div(rows, data_parallel_size) * (tensor.num_params // rows)


@cache
def _layout(
    spec: ModelSpec, job: Job, data_parallel_size: int, reshard: bool, accumulates: bool, offloads: bool, on_cpu: bool
) -> StateLayout:
    formats = formats_of(job.precision)
    root, blocks = sharded_groups(spec, data_parallel_size)
    shard = root.shard + sum(block.shard for block in blocks)
    passes = _Passes(spec, formats, root=root, blocks=blocks, reshard=reshard, accumulates=accumulates)
    start, end = passes.forward()
    backward_start, first_gradient, last_block, in_blocks, after_blocks = passes.backward()
    between = CauseBytes(gradients=formats.reduced * shard if accumulates else 0)
    return StateLayout(
        resident=CauseBytes(
            parameters=formats.shard * shard, optimizer_states=shard_state_bytes(spec, job, data_parallel_size)
        ),
        initialise=_initialise(
            job.precision, formats, root=root, blocks=blocks, on_cpu=on_cpu, tied=parameter_order(spec).tied_elements
        ),
        forward=between + end,
        forward_start=between + start,
        backward_start=between + backward_start,
        first_gradient=between + first_gradient,
        first_reduction=between + last_block,
        backward_end=between + in_blocks,
        embedding_backward=between + after_blocks,
        optimizer_step=CauseBytes(
            gradients=formats.reduced * shard,
            step_temporaries=max(
                step_copy_bytes(job, elements) for elements in _shards_by_optimizer_group(spec, data_parallel_size)
            ),
        ),
        evaluation=end,
        evaluation_start=start,
        save=passes.save(data_parallel_size, saves_16_bit=job.precision.has_master_weights),
    )


def _initialise(
    precision: Precision,
    formats: Formats,
    *,
    root: ShardedGroup,
    blocks: Sequence[ShardedGroup],
    on_cpu: bool,
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
        widens = on_cpu and built < formats.shard
        whole = built * group.widening if widens else formats.shard * group.elements
        shards += formats.shard * group.shard
        moments.append(
            CauseBytes(
                parameters=shards + built * waiting - (formats.shard * group.shard if widens else 0),
                step_temporaries=whole,
            )
        )
    return max(moments, key=_total)


def _shards_by_optimizer_group(spec: ModelSpec, data_parallel_size: int) -> list[int]:
    sums = [0, 0]
    for group in spec.groups:
        for tensor in group.tensors:
            index = 1 if len(tensor.shape) < 2 or "bias" in tensor.name.rpartition(".")[2] else 0
            sums[index] += group.num_copies * shard_elements(tensor, data_parallel_size)
    return sums


class _Passes:
    """A forward and a backward, group by group."""

    def __init__(
        self,
        spec: ModelSpec,
        formats: Formats,
        *,
        root: ShardedGroup,
        blocks: Sequence[ShardedGroup],
        reshard: bool,
        accumulates: bool,
    ) -> None:
        self._spec, self._formats, self._root, self._blocks = spec, formats, root, blocks
        self._reshard, self._accumulates = reshard, accumulates
        self._order = parameter_order(spec)

    def forward(self) -> tuple[CauseBytes, CauseBytes]:
        """Return the highest moment, and the end of forward, when the logits are there."""
        moments, held, previous = [], 0, 0
        for group in (self._root, *self._blocks):
            gather = self._gather(group)
            moments.append(_moment(held, previous + gather + self._flat(group)))
            # The buffer of the group before is referred to until this one's weights are copied out.
            moments.append(_moment(held + gather, previous + gather))
            previous = gather
            if group is self._root or not self._reshard:
                held += gather
        return max(moments, key=_total), _moment(held, previous)

    def backward(self) -> tuple[CauseBytes, CauseBytes, CauseBytes, CauseBytes, CauseBytes]:
        """Return the start, the head's gradient, the last block, the highest block, and what comes after the blocks."""
        formats, order = self._formats, self._order
        held = self._gather(self._root) + (0 if self._reshard else sum(map(self._gather, self._blocks)))
        loose = formats.compute * order.head_elements
        ahead = self._blocks[-1] if self._blocks and self._reshard else None
        start = _moment(held, 0)
        first_gradient = _moment(held, self._prefetch(ahead), loose)
        by_block: list[CauseBytes] = []
        shards = reduced = 0
        for index in reversed(range(len(self._blocks))):
            block = self._blocks[index]
            moments = list(self._block(index, held=held, reduced=reduced, gradients=loose + shards))
            by_block.append(max(moments, key=_total))
            held -= 0 if self._reshard else self._gather(block)
            reduced = formats.reduced * block.gathered
            shards += 0 if self._accumulates else formats.reduced * block.shard
        after = self._after_blocks(held=held, reduced=reduced, shards=shards)
        return (
            start,
            first_gradient,
            by_block[0] if by_block else start,
            max(by_block, key=_total, default=start),
            after,
        )

    def _block(self, index: int, *, held: int, reduced: int, gradients: int) -> Iterator[CauseBytes]:
        formats, block = self._formats, self._blocks[index]
        before = self._blocks[index - 1] if index and self._reshard else None
        gather = self._gather(block)
        if self._reshard:
            yield _moment(held + gather, reduced + gather, gradients)
            held += gather
        own = formats.compute * block.elements
        yield _moment(held, reduced + self._prefetch(before), gradients)
        ahead = self._gather(before) if before else 0
        yield _moment(held, reduced + ahead, gradients + own)
        held -= gather
        new = formats.reduced * block.gathered
        yield _moment(held, new + ahead, gradients + own)
        yield _moment(held, new + ahead, gradients + formats.compute * block.last + formats.reduced * block.shard)

    def _after_blocks(self, *, held: int, reduced: int, shards: int) -> CauseBytes:
        """Return the highest moment of the root's own gradients: as they come, and as they are reduced."""
        formats, root = self._formats, self._root
        own = formats.compute * root.elements
        new = formats.reduced * root.gathered
        moments = (
            # A tied weight's gradients as head and as embedding exist beside their sum.
            _moment(held, reduced, shards + own + 2 * formats.compute * self._order.tied_elements),
            _moment(held - self._gather(root), new, shards + own),
            _moment(
                held - self._gather(root), new, shards + formats.compute * root.last + formats.reduced * root.shard
            ),
        )
        return max(moments, key=_total)

    def save(self, data_parallel_size: int, *, saves_16_bit: bool) -> CauseBytes:
        """Return the highest moment of a save: the root's weights that an evaluation left, or two tensors in a row.

        A tensor is gathered while the one before is still referred to, and its shard is cast first for 16-bit saves.
        """
        element, cast = (2, 2) if saves_16_bit else (self._formats.shard, 0)
        pairs, previous = [self._gather(self._root)], 0
        for group in self._spec.groups:
            for tensor in group.tensors * min(group.num_copies, 2):
                shard = shard_elements(tensor, data_parallel_size)
                gathered = element * shard * data_parallel_size
                pairs.append(previous + gathered + cast * shard)
                previous = gathered
        return CauseBytes(gathered_parameters=max(pairs))

    def _gather(self, group: ShardedGroup) -> int:
        return self._formats.compute * group.gathered

    def _flat(self, group: ShardedGroup) -> int:
        return self._formats.compute * group.shard if self._formats.casts else 0

    def _prefetch(self, group: ShardedGroup | None) -> int:
        return self._gather(group) + self._flat(group) if group else 0


def _moment(gathered: int, buckets: int, gradients: int = 0) -> CauseBytes:
    return CauseBytes(gathered_parameters=gathered, communication_buckets=buckets, gradients=gradients)


def _total(causes: CauseBytes) -> int:
    return causes.total_bytes
