"""What FSDP2 gathers and reduces: groups of parameters, and a forward and a backward over them.

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from strategies.base import NOTHING, BlockState
from strategies.estimate import CauseBytes
from strategies.job import Precision
from strategies.memory.model_states import FP32_BYTES
from strategies.model_spec import GroupRole, ModelSpec, ParameterTensor
from strategies.parameter_order import Gradient, parameter_order
from strategies.units import ceil_div

SMALL_MATRIX = 8
"""A matrix so many times smaller than the largest of its block, such as a router, changes no peak by its gradient."""


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
    largest: int
    """Elements of the largest tensor."""
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
        last=tensors[-1].num_params if data_parallel_size > 1 else 0,
        largest=max(tensor.num_params for tensor in tensors),
        widening=widening,
    )


def shard_elements(tensor: ParameterTensor, data_parallel_size: int) -> int:
    """Return the elements of the first rank's shard, which is the largest."""
    rows = tensor.shape[0]
    return ceil_div(rows, data_parallel_size) * (tensor.num_params // rows)


class Passes:
    """A forward and a backward, group by group."""

    def __init__(
        self,
        spec: ModelSpec,
        formats: Formats,
        *,
        root: ShardedGroup,
        blocks: Sequence[ShardedGroup],
        reshard: bool,
        keeps_gradients: bool,
        loss_in_forward: bool,
    ) -> None:
        """``keeps_gradients``: whether shards of gradients add up on the device during this backward.

        ``loss_in_forward``: whether the model's own forward computes the loss.
        """
        self._loss_in_forward = loss_in_forward
        self._spec, self._formats, self._root, self._blocks = spec, formats, root, blocks
        self._reshard, self._keeps_gradients = reshard, keeps_gradients
        self._order = parameter_order(spec)
        self._is_alone = root.gathered == root.shard

    def forward(self) -> tuple[CauseBytes, CauseBytes, CauseBytes]:
        """Return the highest gather, what lives while a block runs, and the end of forward, with the logits."""
        if self._is_alone:
            return self._forward_alone()
        gathers, in_blocks, held, previous = [], [NOTHING], 0, 0
        for group in (self._root, *self._blocks):
            gather = self._gather(group)
            gathers.append(_moment(held, previous + gather + self._flat(group)))
            # The buffer of the group before is referred to until this one's weights are copied out.
            gathers.append(_moment(held + gather, previous + gather))
            if group is not self._root:
                in_blocks.append(_moment(held + gather, gather))
            previous = gather
            if group is self._root or not self._reshard:
                held += gather
        # The last block's buffer is freed when the root's forward ends; the loss comes after it, but for the fused one.
        end = _moment(held, previous if self._loss_in_forward else 0)
        return max(gathers, key=total_bytes), max(in_blocks, key=total_bytes), end

    def _forward_alone(self) -> tuple[CauseBytes, CauseBytes, CauseBytes]:
        """Return the same for one rank, which copies its shards, and casts them tensor by tensor."""
        held, block = self._gather(self._root), max(map(self._gather, self._blocks), default=0)
        blocks = block if self._reshard else sum(map(self._gather, self._blocks))
        cast = max((self._cast(block) for block in self._blocks), default=0)
        start = max(_moment(held, self._cast(self._root)), _moment(held + blocks, cast), key=total_bytes)
        return start, start, _moment(held + blocks - (block if self._reshard else 0), cast)

    def backward(self) -> tuple[CauseBytes, CauseBytes, CauseBytes]:
        """Return the start, the head's gradient, and what comes after the blocks."""
        formats, order = self._formats, self._order
        held = self._gather(self._root)
        blocks = 0 if self._reshard else sum(map(self._gather, self._blocks))
        loose = formats.compute * order.head_elements
        ahead = self._blocks[-1] if self._blocks and self._reshard else None
        shards = formats.reduced * sum(block.shard for block in self._blocks) if self._keeps_gradients else 0
        reduced = formats.reduced * self._blocks[0].gathered if self._blocks else 0
        return (
            _moment(held + blocks, 0),
            _moment(held + blocks, self._prefetch(ahead), loose),
            self._after_blocks(held=held, reduced=reduced, shards=shards),
        )

    def in_blocks(self) -> Iterator[BlockState]:
        """Yield the states of every block's backward, the last block first."""
        formats, last = self._formats, len(self._blocks) - 1
        held = self._gather(self._root) + (0 if self._reshard else sum(map(self._gather, self._blocks)))
        gradients, reduced = formats.compute * self._order.head_elements, 0
        for index in reversed(range(len(self._blocks))):
            block = self._blocks[index]
            for new_gradient, causes in self._block(index, held=held, reduced=reduced, gradients=gradients):
                yield BlockState(num_done=last - index, new_gradient=new_gradient, causes=causes)
            held -= 0 if self._reshard else self._gather(block)
            reduced = formats.reduced * block.gathered
            gradients += formats.reduced * block.shard if self._keeps_gradients else 0

    def _block(self, index: int, *, held: int, reduced: int, gradients: int) -> Iterator[tuple[int, CauseBytes]]:
        """Yield the bytes of the newest gradient, and what lives then."""
        formats, block = self._formats, self._blocks[index]
        before = self._blocks[index - 1] if index and self._reshard else None
        gather = self._gather(block)
        if self._reshard:
            yield 0, _moment(held + gather, reduced + (0 if self._is_alone else gather), gradients)
            held += gather
        yield 0, _moment(held, reduced + self._prefetch(before), gradients)
        ahead = self._gather(before) if before and not self._is_alone else 0
        made = newest = 0
        seen = set[int]()
        for gradient in self._of_block(index):
            made += formats.compute * gradient.size
            newest = formats.compute * gradient.size if gradient.is_of_matrix else newest
            if newest in seen or gradient.size * SMALL_MATRIX < block.largest:
                continue
            # Where several matrices are of one size, most activations are left at the first one's gradient; and
            # between gradients, soon after that of the MLP's last matrix, which is the first to come.
            yield newest, _moment(held, reduced + ahead, gradients + made)
            if not seen:
                yield 0, _moment(held, reduced + ahead, gradients + made)
            seen.add(newest)
        own = formats.compute * block.elements
        # Reduced when the block is over, soon after its last matrix.
        yield newest, _moment(held, reduced + ahead, gradients + own)
        held -= gather
        new = formats.reduced * block.gathered
        yield newest, _moment(held, new + ahead, gradients + own)
        last = formats.compute * block.last + formats.reduced * block.shard
        yield newest, _moment(held, new + ahead, gradients + last)

    def _of_block(self, index: int) -> Iterator[Gradient]:
        num_done = len(self._blocks) - 1 - index
        found = (each for each in self._order.backward if each.num_done == num_done and not each.is_embedding)
        return (each for each in found if each.is_in_block)

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
        return max(moments, key=total_bytes)

    def save(self, data_parallel_size: int, *, saves_16_bit: bool) -> CauseBytes:
        """Return the highest moment of a save: what an evaluation left gathered, or two tensors in a row.

        A tensor is gathered while the one before is still referred to, and its shard is cast first for 16-bit saves.
        """
        element, cast = (2, 2) if saves_16_bit else (self._formats.shard, 0)
        left = self._gather(self._root) + (0 if self._reshard else sum(map(self._gather, self._blocks)))
        pairs, previous = [left], 0
        for group in self._spec.groups:
            for tensor in group.tensors * min(group.num_copies, 2):
                shard = shard_elements(tensor, data_parallel_size)
                gathered = element * shard * data_parallel_size
                pairs.append(previous + gathered + cast * shard)
                previous = gathered
        return CauseBytes(gathered_parameters=max(pairs))

    def _gather(self, group: ShardedGroup) -> int:
        return self._formats.compute * group.gathered

    def _cast(self, group: ShardedGroup) -> int:
        return self._formats.compute * group.largest if self._formats.casts else 0

    def _flat(self, group: ShardedGroup) -> int:
        return self._formats.compute * group.shard if self._formats.casts else 0

    def _prefetch(self, group: ShardedGroup | None) -> int:
        if self._is_alone:
            return 0
        return self._gather(group) + self._flat(group) if group else 0


def _moment(gathered: int, buckets: int, gradients: int = 0) -> CauseBytes:
    return CauseBytes(gathered_parameters=gathered, communication_buckets=buckets, gradients=gradients)


def total_bytes(causes: CauseBytes) -> int:
    return causes.total_bytes
