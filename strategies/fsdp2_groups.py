"""What FSDP2 gathers and reduces as one: groups of parameters, their shards and formats.

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from strategies.job import Precision
from strategies.memory.model_states import FP32_BYTES
from strategies.model_spec import GroupRole, ModelSpec, ParameterTensor
from strategies.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The trained parameters of a group, whose gradients are reduced as one."""

    elements: int
    shard: int
    gathered: int
    """Elements of all shards, padding included."""
    last: int
    """Elements of the last tensor: a loop variable refers to its gradient to the end of foreach_reduce."""
    largest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedGroup:
    """Parameters that are gathered as one."""

    elements: int
    shard: int
    """Elements that a rank keeps: of each tensor its first dimension divided by the ranks, rounded up."""
    gathered: int
    """Elements of the gathered group, padding included."""
    largest: int
    """Elements of the largest tensor."""
    trained: Trained
    widening: int
    """Most pairs of bytes while 16-bit tensors become fp32 one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """Bytes of one element."""

    shard: int
    """Of a trained parameter, as a rank keeps it."""
    frozen: int
    """Of a frozen one, which stays as it was built: it needs no fp32 master."""
    compute: int
    reduced: int

    @property
    def casts(self) -> bool:
        """Whether trained shards are cast, into a flat copy, before they are gathered."""
        return self.compute != self.shard

    def shard_bytes(self, group: ShardedGroup) -> int:
        """Return the bytes of a group's shard on one rank."""
        return self.shard * group.trained.shard + self.frozen * (group.shard - group.trained.shard)

    def whole_bytes(self, group: ShardedGroup) -> int:
        """Return the bytes of a group that is not sharded yet."""
        return self.shard * group.trained.elements + self.frozen * (group.elements - group.trained.elements)

    def cast_elements(self, group: ShardedGroup) -> int:
        """Return the elements of one rank's shard that are cast before they are gathered."""
        frozen = group.shard - group.trained.shard if self.compute != self.frozen else 0
        return frozen + (group.trained.shard if self.casts else 0)


def formats_of(precision: Precision) -> Formats:
    """Return the formats of a precision: fp32 shards, weights gathered in the format of the computation."""
    if precision is Precision.BF16_PURE:
        return Formats(shard=2, frozen=2, compute=2, reduced=2)
    return Formats(shard=FP32_BYTES, frozen=precision.weight_bytes, compute=precision.compute_bytes, reduced=FP32_BYTES)


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
            blocks.extend(_group(tuple(stack[layer]), data_parallel_size) for layer in sorted(stack))
            stack = {}
            root.extend(group.tensors)
    blocks.extend(_group(tuple(stack[layer]), data_parallel_size) for layer in sorted(stack))
    return _group(tuple(root), data_parallel_size), tuple(blocks)


@lru_cache(maxsize=256)
def _group(tensors: tuple[ParameterTensor, ...], data_parallel_size: int) -> ShardedGroup:
    # Blocks that are alike are made once.
    shard = sum(shard_elements(tensor, data_parallel_size) for tensor in tensors)
    elements, before, widening = sum(tensor.num_params for tensor in tensors), 0, 0
    trained = [tensor for tensor in tensors if tensor.is_trained]
    for tensor in trained:
        widening = max(widening, 2 * (before + tensor.num_params) + elements - before)
        before += tensor.num_params
    return ShardedGroup(
        elements=elements,
        shard=shard,
        gathered=shard * data_parallel_size,
        largest=max(tensor.num_params for tensor in tensors),
        trained=_trained(trained, data_parallel_size),
        widening=widening,
    )


def _trained(tensors: Sequence[ParameterTensor], data_parallel_size: int) -> Trained:
    shard = sum(shard_elements(tensor, data_parallel_size) for tensor in tensors)
    return Trained(
        elements=sum(tensor.num_params for tensor in tensors),
        shard=shard,
        gathered=shard * data_parallel_size,
        last=tensors[-1].num_params if tensors and data_parallel_size > 1 else 0,
        largest=max((tensor.num_params for tensor in tensors), default=0),
    )


def shard_elements(tensor: ParameterTensor, data_parallel_size: int) -> int:
    """Return the elements of the first rank's shard, which is the largest."""
    rows = tensor.shape[0] if tensor.shape else 1  # a scalar is given a dimension for training
    return ceil_div(rows, data_parallel_size) * (tensor.num_params // rows)
