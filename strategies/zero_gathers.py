"""Weights and gradients under ZeRO stage 3: which are gathered when, followed module by module.

Source: deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, release_sub_module),
partition_parameters.py (all_gather_coalesced) and stage3.py; the order of modules has been recorded, as it is from
the second step on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from strategies.model_spec import ModelSpec
from strategies.parameter_order import parameter_order, tensor_sizes
from strategies.plan import Buckets
from strategies.units import round_up
from strategies.zero_gathered import IN_BLOCKS, STRETCHES, BlockMoment, GatheredElements, Moment, Stage3Offload
from strategies.zero_modules import STACKED_DIMENSIONS, ModuleStep
from strategies.zero_uses import uses_of


@dataclass(slots=True, kw_only=True)
class _Weight:
    """A tensor: where it is now."""

    elements: int
    aligned: int
    is_persistent: bool
    is_trained: bool = True
    is_available: bool = False
    in_flight: _Gather | None = None
    is_stacked: bool = False
    """Experts in one tensor: autograd keeps a view of the gathered weight, which lives on after its release."""
    held: int = 0
    kept: int = 0
    last_use: int = -1
    """The latest step that the queue was read up to for it."""


@dataclass(slots=True, kw_only=True)
class _Gather:
    """Tensors gathered together, in a flat buffer that is copied out when the first of them is waited for."""

    weights: list[_Weight]
    waiting: int
    flat: int
    is_copied: bool = False


def walk(
    spec: ModelSpec,
    data_parallel_size: int,
    buckets: Buckets,
    *,
    checkpoint_every: int,
    offload: Stage3Offload,
) -> GatheredElements:
    """Return what is gathered, at its highest, in the passes of the steady state.

    ``checkpoint_every``: blocks 0, k, 2k, ... are computed again in backward; 0 for none.
    """
    return _Walk(spec, data_parallel_size, buckets, checkpoint_every, offload).result()


class _Walk:
    """A forward and a backward on one rank."""

    def __init__(
        self,
        spec: ModelSpec,
        data_parallel_size: int,
        buckets: Buckets,
        checkpoint_every: int,
        offload: Stage3Offload,
    ) -> None:
        self._size, self._buckets, self._offload = data_parallel_size, buckets, offload
        self._after_forward = Moment(gathered=0)
        limit = buckets.stage3_param_persistence_threshold
        self._weights = [
            _Weight(
                elements=size,
                aligned=round_up(size, data_parallel_size),
                is_persistent=size <= limit,
                is_trained=tensor.is_trained,
                is_available=size <= limit,
                is_stacked=len(tensor.shape) == STACKED_DIMENSIONS,
            )
            for size, tensor in zip(tensor_sizes(spec), spec.tensors(), strict=True)
        ]
        self._tied = parameter_order(spec).tied_elements
        self._uses = uses_of(spec, checkpoint_every)
        self._num_blocks, self._num_forward = self._uses.num_blocks, self._uses.num_forward
        self._queue = deque((index, number) for number, step in enumerate(self._uses.steps) for index in step.weights)
        self._step = self._num_available = self._held = self._flat = self._kept = 0
        self._bucket: list[_Weight] = []
        self._bucket_elements = self._loose = 0
        self._moments: dict[str, Moment] = {}
        self._in_blocks: dict[tuple[int, int], Moment] = {}
        self._stretch = ""
        self._num_done = self._new_gradient = 0

    def result(self) -> GatheredElements:
        self._pass()
        after_forward = self._after_forward
        nothing = Moment(gathered=0)
        found = {name: self._moments.get(name, nothing) for name in STRETCHES}
        in_blocks = tuple(
            BlockMoment(num_done=num_done, new_gradient=new_gradient, moment=moment)
            for (num_done, new_gradient), moment in self._in_blocks.items()
        )
        persistent = sum(weight.aligned for weight in self._weights if weight.is_persistent and self._size > 1)
        return GatheredElements(persistent=persistent, after_forward=after_forward, in_blocks=in_blocks, **found)

    def _pass(self) -> None:
        for number, step in enumerate(self._uses.steps):
            if number == self._num_forward:
                self._after_forward = Moment(gathered=self._held, buckets=self._flat)
                self._stretch = "backward_start"
                self._note()
            self._stretch = self._stretch_of(number, step)
            self._num_done = self._num_blocks - 1 - step.block
            self._fetch(step)
            self._note()
            if step.is_backward:
                self._gradients(step, is_last_use=self._is_embedding(step, number))
                self._new_gradient = 0
            self._release(number, step)
        self._stretch = "after_blocks"
        self._reduce()

    def _stretch_of(self, number: int, step: ModuleStep) -> str:
        if number < self._num_forward:
            return "forward" if step.block == self._num_blocks else "forward_start"
        if step.block < 0:
            return "after_blocks"
        if step.block == self._num_blocks:
            return "first_gradient" if step.weights else "backward_start"
        return IN_BLOCKS

    def _is_embedding(self, step: ModuleStep, number: int) -> bool:
        """Whether a step of backward is not the first use of a tied weight, whose gradient waits for the last."""
        return not self._tied or 0 not in step.weights or number > self._num_forward

    def _fetch(self, step: ModuleStep) -> None:
        needed = [self._weights[index] for index in step.weights]
        self._gather([weight for weight in needed if not weight.is_available and not weight.in_flight])
        for weight in needed:
            if weight.in_flight:
                self._wait(weight)
        unread = {index for index in step.weights if self._weights[index].last_use < self._step}
        read = set[int]()
        while self._queue and len(read) < len(unread):
            index, use = self._queue.popleft()
            self._weights[index].last_use = use
            read.add(index)
        self._prefetch()
        self._step += 1

    def _prefetch(self) -> None:
        most = min(
            self._buckets.stage3_max_live_parameters - self._num_available, self._buckets.stage3_prefetch_bucket_size
        )
        ahead: list[_Weight] = []
        elements = 0
        while self._queue and elements < most:
            index, use = self._queue.popleft()
            weight = self._weights[index]
            weight.last_use = max(weight.last_use, use)
            if not weight.is_available and not weight.in_flight and weight not in ahead:
                ahead.append(weight)
                elements += weight.elements
        self._gather(ahead)

    def _gather(self, weights: list[_Weight]) -> None:
        if self._size == 1:
            for weight in weights:  # its partition is the weight
                weight.is_available = True
        if not weights or self._size == 1:
            return
        self._num_available += sum(weight.elements for weight in weights)
        aligned = sum(weight.aligned for weight in weights)
        is_single = len(weights) == 1
        gather = _Gather(weights=weights, waiting=len(weights), flat=0 if is_single else aligned)
        for weight in weights:
            weight.in_flight = gather
        self._flat += gather.flat
        if is_single:
            weights[0].held = aligned
            self._held += aligned
        self._note(copy=aligned // self._size if self._offload.parameters else 0)

    def _wait(self, weight: _Weight) -> None:
        gather = weight.in_flight
        assert gather is not None
        if not gather.is_copied:
            gather.is_copied = True
            for each in gather.weights:
                each.is_available = True
                if gather.flat:
                    each.held = each.elements
                    self._held += each.elements
            self._note()
        weight.in_flight = None
        gather.waiting -= 1
        if not gather.waiting:
            self._flat -= gather.flat

    def _release(self, number: int, step: ModuleStep) -> None:
        if step.is_backward and step.block < 0:
            return  # the input of an embedding needs no gradient, so that its backward never ends
        for index in step.weights:
            weight = self._weights[index]
            is_near = self._uses.distance_to_next(number, index) < self._buckets.stage3_max_live_parameters
            if weight.is_persistent or not weight.is_available or weight.last_use > self._step or is_near:
                continue
            weight.is_available = False
            self._num_available -= weight.elements if self._size > 1 else 0
            if step.is_backward:
                self._kept -= weight.kept
                weight.kept = 0
            elif weight.is_stacked and (number >= self._num_forward or not self._uses.is_checkpointed(step.block)):
                weight.kept = weight.held
                self._kept += weight.kept
            self._held -= weight.held
            weight.held = 0

    def _gradients(self, step: ModuleStep, *, is_last_use: bool) -> None:
        if self._uses.holds_experts(step):
            self._gradients_of_experts(step)
            return
        for index in reversed(step.weights):
            weight = self._weights[index]
            if not weight.is_trained:
                continue
            self._new_gradient = weight.elements
            if not is_last_use:
                self._loose += weight.elements
                self._note()
                continue
            tied = self._tied if index == 0 else 0
            # The sum of a tied weight's two gradients exists beside both.
            self._note(gradient=weight.elements + tied)
            self._loose -= tied
            self._add(weight, arriving=weight.elements + tied)

    def _gradients_of_experts(self, step: ModuleStep) -> None:
        """Handled together when the block's backward is over (create_reduce_and_remove_grad_hooks)."""
        weights = [self._weights[index] for index in step.weights if self._weights[index].is_trained]
        if not weights:
            return
        self._loose += sum(weight.elements for weight in weights)
        self._new_gradient = max(weight.elements for weight in weights)
        self._note()
        for weight in weights:
            self._add(weight, arriving=0)
            self._loose -= weight.elements

    def _add(self, weight: _Weight, *, arriving: int) -> None:
        if self._bucket_elements + weight.elements > self._buckets.reduce_bucket_size and self._bucket_elements:
            self._reduce(arriving=arriving)
        if self._bucket_elements + weight.elements > self._buckets.reduce_bucket_size:
            self._loose += weight.elements
        self._bucket.append(weight)
        self._bucket_elements += weight.elements

    def _reduce(self, *, arriving: int = 0) -> None:
        if not self._bucket:
            return
        is_reduced_in_place = len(self._bucket) == 1 and self._bucket[0].aligned == self._bucket[0].elements
        copy = 0 if is_reduced_in_place else sum(weight.aligned for weight in self._bucket)
        self._note(gradient=arriving, copy=copy)
        if self._offload.optimizer:
            # One by one, partitions come back from the host's buffer, and norms are taken of double-precision copies
            # (partition_grads, _constant_buffered_norm2).
            part = max(weight.aligned for weight in self._bucket) // self._size
            self._note(gradient=arriving, copy=copy + (1 + self._offload.norm_elements) * part)
        if self._bucket_elements > self._buckets.reduce_bucket_size:
            self._loose -= self._bucket_elements
        self._bucket, self._bucket_elements = [], 0

    def _note(self, *, gradient: int = 0, copy: int = 0) -> None:
        moment = Moment(gathered=self._held + self._kept, buckets=self._flat + copy, gradients=self._loose + gradient)
        if self._stretch == IN_BLOCKS:
            key = (self._num_done, self._new_gradient)
            before = self._in_blocks.get(key)
            if before is None or moment.total > before.total:
                self._in_blocks[key] = moment
            return
        self._keep_highest(self._stretch, moment)
        if self._stretch in ("forward_start", "forward"):
            stretch = "evaluation" if self._stretch == "forward" else "evaluation_start"
            self._keep_highest(stretch, Moment(gathered=self._held, buckets=self._flat + copy))

    def _keep_highest(self, stretch: str, moment: Moment) -> None:
        best = self._moments.get(stretch)
        if best is None or moment.total > best.total:
            self._moments[stretch] = moment
