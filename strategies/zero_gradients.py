"""Gradients under ZeRO stages 1 and 2: buckets, flat copies and partitions, followed tensor by tensor.

Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py; a name in parentheses is the function followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from strategies.model_spec import ModelSpec
from strategies.parameter_order import Gradient, ParameterOrder, parameter_order
from strategies.zero_partitions import partition_elements, ranks_that_may_hold_most, touched_elements

MANY_SLICES = 64
"""Owners of one tensor beyond which the copies of its parts are not told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """What decides how gradients travel."""

    data_parallel_size: int
    bucket_elements: int
    num_buckets: int
    """Two with ``overlap_comm``."""
    is_stage_2: bool
    in_backward: bool
    """Whether buckets are reduced while backward runs (stage 2, or overlap_comm); else after it."""
    offloads: bool = False
    """Whether partitions of gradients rest on the host: none is kept on the device."""
    scratch_per_element: int = 0
    """Elements of the copy in double precision that the norm of an offloaded gradient is taken of."""
    accumulates: bool
    """Whether an optimizer step has several micro batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Elements held for gradients at one moment, beside the weights."""

    gradients: int
    buckets: int

    @property
    def total(self) -> int:
        return self.gradients + self.buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMoment:
    """A moment while one block's backward runs."""

    num_done: int
    """Blocks whose backward is over."""
    new_gradient: int
    """Elements of the gradient that has just been made; 0 between two of them."""
    moment: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientElements:
    """Elements in the format of the weights at the moments of a backward pass, for the rank that holds most."""

    between: Moment
    """While a forward runs after an earlier micro batch."""
    first_gradient: Moment
    after_head: Moment
    """The highest between the head's gradient and the last block: a norm's gradient may send a full bucket off."""
    in_blocks: tuple[BlockMoment, ...]
    """Of every rank that may hold most."""
    after_blocks: Moment
    """The highest from the embedding's gradient on."""


@cache
def gradient_elements(spec: ModelSpec, reduction: Reduction) -> GradientElements:
    """Return what gradients and buckets hold, over the ranks that may hold most, each moment at its highest."""
    order = parameter_order(spec)
    ranks = ranks_that_may_hold_most(spec, reduction.data_parallel_size)
    walks = [_Walk(order, reduction, rank).result() for rank in ranks]
    return GradientElements(
        between=max((walk.between for walk in walks), key=lambda moment: moment.total),
        first_gradient=max((walk.first_gradient for walk in walks), key=lambda moment: moment.total),
        after_head=max((walk.after_head for walk in walks), key=lambda moment: moment.total),
        in_blocks=tuple(each for walk in walks for each in walk.in_blocks),
        after_blocks=max((walk.after_blocks for walk in walks), key=lambda moment: moment.total),
    )


class _Walk:
    """The last backward of a step on one rank, gradient by gradient."""

    def __init__(self, order: ParameterOrder, reduction: Reduction, rank: int) -> None:
        self._order, self._reduction, self._rank = order, reduction, rank
        size = reduction.data_parallel_size
        self._shares = [partition_elements(group, size) for group in order.groups]
        self._touched = sum(touched_elements(group, size, rank=rank) for group in order.groups)
        self._fixed = self._kept_between()
        self._buckets = reduction.num_buckets * reduction.bucket_elements
        self._loose = order.tied_elements
        """Gradients in memory of their own. A tied weight's gradient as a head waits for that as an embedding."""
        self._partition = 0
        self._in_bucket: list[Gradient] = []
        self._bucket_elements = 0
        self._in_blocks: dict[tuple[int, int], Moment] = {}
        self._at_head: list[Moment] = []
        self._after_head: list[Moment] = []
        self._after_blocks: list[Moment] = []
        self._num_done = self._new_gradient = 0
        self._moments: list[Moment] | None = self._after_head
        """Where moments outside of blocks are noted."""

    def result(self) -> GradientElements:
        between = Moment(gradients=self._fixed, buckets=self._buckets if self._buckets_stay() else 0)
        # A tied head's gradient waits for the embedding's, a frozen one has none: nothing has come to the buckets yet.
        has_buckets = self._buckets_stay() or (self._order.head_elements and not self._order.tied_elements)
        first = Moment(gradients=self._fixed + self._order.head_elements, buckets=self._buckets if has_buckets else 0)
        if self._buckets_stay():
            self._added_in_place()
        if self._reduction.in_backward:
            self._reduced_as_they_come()
        else:
            self._reduced_at_the_end()
        self._reduce_bucket()
        return GradientElements(
            between=between,
            first_gradient=max(first, *self._at_head, key=lambda moment: moment.total) if self._at_head else first,
            after_head=max(self._after_head, key=lambda moment: moment.total, default=first),
            in_blocks=tuple(
                BlockMoment(num_done=num_done, new_gradient=new_gradient, moment=moment)
                for (num_done, new_gradient), moment in self._in_blocks.items()
            ),
            after_blocks=max(self._after_blocks, key=lambda moment: moment.total, default=between),
        )

    def _added_in_place(self) -> None:
        """A micro batch that is not the last adds to the gradients where they are."""
        for gradient in self._order.backward:
            self._arrive(gradient)
            tied = self._order.tied_elements if gradient is self._order.backward[-1] else 0
            self._note_added(gradient.size + tied)

    def _arrive(self, gradient: Gradient) -> None:
        """What is noted from now on is at the moment of this gradient."""
        self._num_done, self._new_gradient = gradient.num_done, gradient.size
        is_head = gradient.size == self._order.head_elements and not self._order.tied_elements
        if gradient.is_embedding:
            self._moments = self._after_blocks
        elif gradient.is_in_block:
            self._moments = None
        else:
            self._moments = self._at_head if is_head else self._after_head

    def _kept_between(self) -> int:
        """Return what earlier micro batches leave: stage 1 every gradient, stage 2 those of the tensors it touches."""
        if not self._reduction.accumulates:
            return 0
        if self._reduction.is_stage_2 and self._reduction.offloads:
            return 0
        return self._touched if self._reduction.is_stage_2 else sum(group.num_params for group in self._order.groups)

    def _buckets_stay(self) -> bool:
        return self._reduction.accumulates and not self._reduction.is_stage_2

    def _reduced_as_they_come(self) -> None:
        in_place = self._buckets_stay()  # stage 1 has added earlier micro batches up in the gradient itself
        for gradient in self._order.backward:
            self._arrive(gradient)
            tied = self._order.tied_elements if gradient is self._order.backward[-1] else 0
            self._loose += gradient.size + tied
            self._note()
            self._loose -= tied + (gradient.size if in_place else 0)  # added to the one that is there
            self._make_room(gradient)
            self._put_in_bucket(gradient, in_place=in_place)
            self._loose -= tied
            self._new_gradient = 0
            self._note()

    def _reduced_at_the_end(self) -> None:
        """Stage 1 without overlap: all gradients are there, and go through the bucket group by group."""
        accumulates, self._fixed = self._reduction.accumulates, 0
        self._loose += sum(gradient.size for gradient in self._order.backward) if accumulates else 0
        for gradient in self._order.backward:
            self._arrive(gradient)
            tied = self._order.tied_elements if gradient is self._order.backward[-1] else 0
            self._note_added(gradient.size + tied)
            self._loose += 0 if accumulates else gradient.size
            self._new_gradient = 0
            self._note()
        self._loose -= self._order.tied_elements
        self._moments = self._after_blocks
        for gradient in sorted(self._order.backward, key=lambda each: (each.group, each.index)):
            self._make_room(gradient)
            self._put_in_bucket(gradient, in_place=False)

    def _make_room(self, gradient: Gradient) -> None:
        if self._bucket_elements + gradient.size > self._reduction.bucket_elements:
            self._reduce_bucket()

    def _put_in_bucket(self, gradient: Gradient, *, in_place: bool) -> None:
        self._in_bucket.append(gradient)
        self._bucket_elements += gradient.size
        if gradient.size > self._reduction.bucket_elements and self._reduction.offloads:
            self._note_added(gradient.size)  # cloned, for a storage of its own
        if gradient.size <= self._reduction.bucket_elements:
            self._leave(gradient, in_place=in_place)

    def _leave(self, gradient: Gradient, *, in_place: bool) -> None:
        """A gradient gives up its own memory: it is a part of a buffer now."""
        if in_place:
            self._fixed -= gradient.size
        else:
            self._loose -= gradient.size

    def _reduce_bucket(self) -> None:
        """Average, keep what this rank's partition touches, drop the rest (reduce_ipg_grads)."""
        if not self._in_bucket:
            return
        self._note(self._largest_copy())
        for gradient in self._in_bucket:
            is_kept = self._is_owned(gradient)
            if is_kept and self._reduction.offloads:
                self._note(self._reduction.scratch_per_element * self._owned_elements(gradient))
            elif is_kept and not self._partition:
                self._partition = self._touched
                self._note()
            is_loose = gradient.size > self._reduction.bucket_elements
            # Stage 1 keeps the gradients of tensors larger than the bucket until the step.
            if is_loose and (is_kept or self._reduction.is_stage_2):
                self._leave(gradient, in_place=self._buckets_stay() and self._reduction.in_backward)
        self._in_bucket, self._bucket_elements = [], 0

    def _largest_copy(self) -> int:
        """Return the elements of the flat copy that is reduced; a single slice is reduced where it is."""
        if self._bucket_elements <= self._reduction.bucket_elements:
            owners = {owner for gradient in self._in_bucket for owner in self._first_and_last_owner(gradient)}
            return self._bucket_elements if len(owners) > 1 else 0
        gradient, limit = self._in_bucket[0], self._reduction.bucket_elements
        share = self._shares[gradient.group]
        if gradient.size > MANY_SLICES * share:
            return (limit // share + 1) * share
        copies, copy, num_slices = [0], 0, 0
        for elements in self._slices():
            copy, num_slices = copy + elements, num_slices + 1
            if copy > limit:
                copies.append(copy if num_slices > 1 else 0)
                copy, num_slices = 0, 0
        copies.append(copy if num_slices > 1 else 0)
        return max(copies)

    def _slices(self) -> Iterator[int]:
        """Yield the elements of a large tensor's parts by owner."""
        gradient = self._in_bucket[0]
        share = self._shares[gradient.group]
        start = self._order.groups[gradient.group].offsets[gradient.index]
        end = start + gradient.size
        while start < end:
            part = min(end, (start // share + 1) * share) - start
            yield part
            start += part

    def _owned_elements(self, gradient: Gradient) -> int:
        share = self._shares[gradient.group]
        start = self._order.groups[gradient.group].offsets[gradient.index]
        return min(start + gradient.size, share * (self._rank + 1)) - max(start, share * self._rank)

    def _is_owned(self, gradient: Gradient) -> bool:
        first, last = self._first_and_last_owner(gradient)
        return first <= self._rank <= last

    def _first_and_last_owner(self, gradient: Gradient) -> tuple[int, int]:
        share = self._shares[gradient.group]
        start = self._order.groups[gradient.group].offsets[gradient.index]
        return start // share, (start + gradient.size - 1) // share

    def _note_added(self, elements: int) -> None:
        self._loose += elements
        self._note()
        self._loose -= elements

    def _note(self, copy: int = 0) -> None:
        moment = Moment(gradients=self._fixed + self._loose + self._partition, buckets=self._buckets + copy)
        if self._moments is not None:
            self._moments.append(moment)
            return
        key = (self._num_done, self._new_gradient)
        before = self._in_blocks.get(key)
        if before is None or moment.total > before.total:
            self._in_blocks[key] = moment
