"""A forward and a backward of FSDP2, group by group.

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strategies.base import NOTHING, BlockState
from strategies.estimate import CauseBytes
from strategies.fsdp2_groups import Formats, ShardedGroup, Trained, shard_elements
from strategies.model_spec import ModelSpec
from strategies.parameter_order import Gradient, parameter_order

SMALL_MATRIX = 8
"""A matrix so many times smaller than the largest of its block, such as a router, changes no peak by its gradient."""


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
        whole_gradients: bool,
        loss_in_forward: bool,
    ) -> None:
        """``keeps_gradients``: whether shards of gradients add up on the device during this backward.

        ``whole_gradients``: whether those of earlier micro batches were not reduced, and wait whole for this one, the
        last. ``loss_in_forward``: whether the model's own forward computes the loss.
        """
        # Kept in the format in which they will be reduced (FSDPParam.to_accumulated_grad_if_needed).
        self._whole = formats.reduced if whole_gradients else 0
        self._adds_at_once = whole_gradients and not formats.casts
        """Whether autograd itself adds a new gradient to the waiting one; else 16-bit ones wait for the group's end."""
        self._loss_in_forward = loss_in_forward
        self._spec, self._formats, self._root, self._blocks = spec, formats, root, blocks
        self._reshard, self._keeps_gradients = reshard, keeps_gradients
        self._order = parameter_order(spec)
        self._is_alone = root.gathered == root.shard

    def forward(self) -> tuple[CauseBytes, CauseBytes, CauseBytes, CauseBytes]:
        """Return the highest gather, the last one, what lives while a block runs, and the end, with the logits."""
        if self._is_alone:
            return self._forward_alone()
        gathers, in_blocks, held, previous = [], [NOTHING], 0, 0
        for index, group in enumerate((self._root, *self._blocks), start=-1):
            gather = self._gather(group)
            if not self._is_among_alike(index):
                # The buffer of the group before is referred to until this one's weights are copied out.
                moments = (
                    _moment(held, previous + gather + self._flat(group)),
                    _moment(held + gather, previous + gather),
                )
                gathers.append(max(moments, key=total_bytes))
                if group is not self._root:
                    in_blocks.append(_moment(held + gather, gather))
            previous = gather
            if group is self._root or not self._reshard:
                held += gather
        # The last block's buffer is freed when the root's forward ends; the loss comes after it, but for the fused one.
        end = _moment(held, previous if self._loss_in_forward else 0)
        return max(gathers, key=total_bytes), gathers[-1], max(in_blocks, key=total_bytes), end

    def _forward_alone(self) -> tuple[CauseBytes, CauseBytes, CauseBytes, CauseBytes]:
        """Return the same for one rank, which copies its shards, and casts them tensor by tensor."""
        held, block = self._gather(self._root), max(map(self._gather, self._blocks), default=0)
        blocks = block if self._reshard else sum(map(self._gather, self._blocks))
        cast = max((self._cast(block) for block in self._blocks), default=0)
        start = max(_moment(held, self._cast(self._root)), _moment(held + blocks, cast), key=total_bytes)
        return start, NOTHING, start, _moment(held + blocks - (block if self._reshard else 0), cast)

    def backward(self) -> tuple[CauseBytes, CauseBytes, CauseBytes]:
        """Return the start, the head's gradient, and what comes after the blocks."""
        formats, order, waiting = self._formats, self._order, self.waiting_gradients
        held = self._gather(self._root)
        blocks = 0 if self._reshard else sum(map(self._gather, self._blocks))
        loose = waiting + formats.compute * order.head_elements
        reached = self._blocks[self._spec.num_frozen_layers :]
        ahead = reached[-1] if reached and self._reshard else None
        shards = formats.reduced * sum(block.trained.shard for block in reached) if self._keeps_gradients else 0
        reduced = formats.reduced * reached[0].trained.gathered if reached else 0
        return (
            _moment(held + blocks, 0, waiting),
            _moment(held + blocks, self._prefetch(ahead), loose),
            self._after_blocks(held=held, reduced=reduced, shards=shards),
        )

    @property
    def waiting_gradients(self) -> int:
        """Whole gradients of earlier micro batches, in bytes."""
        return self._whole * sum(group.trained.elements for group in (self._root, *self._blocks))

    def in_blocks(self) -> Iterator[BlockState]:
        """Yield the states of every block's backward, the last block first."""
        formats, last = self._formats, len(self._blocks) - 1
        held = self._gather(self._root) + (0 if self._reshard else sum(map(self._gather, self._blocks)))
        # A tied head's gradient waits for that as an embedding in any case.
        loose = formats.compute * (self._order.tied_elements if self._adds_at_once else self._order.head_elements)
        gradients, reduced = self.waiting_gradients + loose, 0
        for index in reversed(range(self._spec.num_frozen_layers, len(self._blocks))):
            block = self._blocks[index]
            if not self._is_among_alike(index):
                for new_gradient, causes in self._block(index, held=held, reduced=reduced, gradients=gradients):
                    yield BlockState(num_done=last - index, new_gradient=new_gradient, causes=causes)
            held -= 0 if self._reshard else self._gather(block)
            reduced = formats.reduced * block.trained.gathered
            gradients += formats.reduced * block.trained.shard if self._keeps_gradients else 0
            gradients -= self._whole * block.trained.elements

    def _is_among_alike(self, index: int) -> bool:
        """Whether a block's states lie on a line between those of its neighbours, so that they are no peak."""
        if index - 2 < self._spec.num_frozen_layers or index + 2 >= len(self._blocks):
            return False
        return tuple(self._blocks[index - 2 : index + 3]) == (self._blocks[index],) * 5

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
            made = formats.compute * gradient.size + (0 if self._adds_at_once else made)
            newest = formats.compute * gradient.size if gradient.is_of_matrix else newest
            if newest in seen or gradient.size * SMALL_MATRIX < block.trained.largest:
                continue
            # Where several matrices are of one size, most activations are left at the first one's gradient; and
            # between gradients, soon after that of the MLP's last matrix, which is the first to come.
            yield newest, _moment(held, reduced + ahead, gradients + made)
            if not seen:
                yield 0, _moment(held, reduced + ahead, gradients + made)
            seen.add(newest)
        own = formats.compute * (block.trained.last if self._adds_at_once else block.trained.elements)
        # Reduced when the block is over, soon after its last matrix.
        yield newest, _moment(held, reduced + ahead, gradients + own)
        held -= gather
        new = formats.reduced * block.trained.gathered
        yield newest, _moment(held, new + ahead, gradients + self._to_reduce(block.trained))
        yield newest, _moment(held, new + ahead, gradients + self._reduced(block.trained))

    def _of_block(self, index: int) -> Iterator[Gradient]:
        num_done = len(self._blocks) - 1 - index
        found = (each for each in self._order.backward if each.num_done == num_done and not each.is_embedding)
        return (each for each in found if each.is_in_block)

    def _after_blocks(self, *, held: int, reduced: int, shards: int) -> CauseBytes:
        """Return the highest moment of the root's own gradients: as they come, and as they are reduced."""
        root = self._root.trained
        shards += self._whole * root.elements
        # A tied weight's gradients as head and as embedding exist beside their sum.
        own = root.largest if self._adds_at_once else root.elements
        own = self._formats.compute * (own + 2 * self._order.tied_elements)
        new, resting = self._formats.reduced * root.gathered, held - self._gather(self._root)
        moments = [
            _moment(held, reduced, shards + own),
            _moment(resting, new, shards + self._to_reduce(root)),
            _moment(resting, new, shards + self._reduced(root)),
        ]
        if self._whole:
            # The end of the first micro batch, when all whole gradients are there and the root's still become wider.
            widened = self._formats.compute * root.largest if self._formats.casts else 0
            moments.append(_moment(held, 0, self.waiting_gradients - self._whole * root.elements + own))
            moments.append(_moment(resting, 0, self.waiting_gradients + widened))
        return max(moments, key=total_bytes)

    def _to_reduce(self, group: Trained) -> int:
        """Return the bytes of a group's gradients when the buffer of their reduction is made, beside waiting ones."""
        return 0 if self._whole else self._formats.compute * group.elements

    def _reduced(self, group: Trained) -> int:
        """Return the bytes of a group's gradients when its shard is there, beside waiting ones."""
        shard = self._formats.reduced * group.shard
        if self._whole:
            return shard + self._whole * (group.last - group.elements)
        return shard + self._formats.compute * group.last

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
        return self._formats.compute * self._formats.cast_elements(group)

    def _prefetch(self, group: ShardedGroup | None) -> int:
        if self._is_alone:
            return 0
        return self._gather(group) + self._flat(group) if group else 0


def _moment(gathered: int, buckets: int, gradients: int = 0) -> CauseBytes:
    return CauseBytes(gathered_parameters=gathered, communication_buckets=buckets, gradients=gradients)


def total_bytes(causes: CauseBytes) -> int:
    return causes.total_bytes
