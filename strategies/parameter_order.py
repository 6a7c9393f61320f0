"""The trained tensors of a model as an optimizer and a backward pass meet them: sizes, order, weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import prod

from strategies.model_spec import GroupRole, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerGroup:
    """Tensors that the optimizer treats alike, in the order of ``named_parameters()``."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    """Elements before each tensor, and at the end those of all."""

    @property
    def num_params(self) -> int:
        return self.offsets[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One tensor as backward meets it."""

    size: int
    group: int
    """Index of its optimizer group."""
    index: int
    """Position in that group."""
    num_done: int
    """Blocks whose backward is over when this gradient comes."""
    is_in_block: bool
    is_of_matrix: bool
    """Not of a norm or a bias."""
    is_embedding: bool
    """Whether it comes when no activation is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterOrder:
    """Cut of a model's trained tensors into optimizer groups, and the order of their gradients."""

    groups: tuple[OptimizerGroup, ...]
    backward: tuple[Gradient, ...]
    """Last tensor first. Inside a block the order of names differs from that of use; it decides little."""
    embedding_elements: int
    """Of the largest trained tensor of the embedding."""
    tied_elements: int
    """Of the weight that is embedding and head: its gradient as a head waits for that as an embedding; 0 untied, or
    frozen."""
    head_elements: int
    """Of the head's tensor, whose gradient comes first; 0 where it is frozen."""


@cache
def parameter_order(spec: ModelSpec) -> ParameterOrder:
    """Return the groups that the trainer makes: tensors with weight decay, and those without (norms, biases).

    Same rule as scaling/engines/optimizer.py, split_by_decay.
    """
    sizes: tuple[list[int], list[int]] = ([], [])
    gradients = []
    blocks = blocks_of_tensors(spec)
    last = spec.num_layers - 1
    num_embedding = sum(len(group.tensors) for group in spec.groups if group.role is GroupRole.EMBEDDING)
    for position, (block, tensor) in enumerate(zip(blocks, spec.tensors(), strict=True)):
        if not tensor.is_trained:
            continue
        size = tensor.num_params
        group = 1 if len(tensor.shape) < 2 or "bias" in tensor.name.rpartition(".")[2] else 0
        gradients.append((size, group, len(sizes[group]), block, len(tensor.shape) > 1, position < num_embedding))
        sizes[group].append(size)
    # An empty group does not exist for the optimizer.
    present = [group for group in (0, 1) if sizes[group]]
    tied = _tied_elements(spec)
    return ParameterOrder(
        groups=tuple(
            OptimizerGroup(sizes=tuple(sizes[group]), offsets=tuple(accumulate(sizes[group], initial=0)))
            for group in present
        ),
        backward=tuple(
            Gradient(
                size=size,
                group=present.index(group),
                index=index,
                num_done=min(max(last - block, 0), last),
                is_in_block=0 <= block <= last,
                is_of_matrix=is_matrix,
                is_embedding=is_embedding,
            )
            for size, group, index, block, is_matrix, is_embedding in reversed(gradients)
        ),
        embedding_elements=_largest_trained(spec, GroupRole.EMBEDDING),
        tied_elements=tied,
        head_elements=tied or _largest_trained(spec, GroupRole.HEAD),
    )


def tied_weight_elements(spec: ModelSpec) -> int:
    """Return the elements of the weight that is embedding and head, trained or not; 0 where there is none."""
    return spec.vocab_size * spec.hidden_size if spec.tied_embeddings else 0


def _tied_elements(spec: ModelSpec) -> int:
    first = next(spec.tensors())
    return tied_weight_elements(spec) if first.is_trained else 0


def _largest_trained(spec: ModelSpec, role: GroupRole) -> int:
    groups = (group for group in spec.groups if group.role is role)
    return max((each.num_params for group in groups for each in group.tensors if each.is_trained), default=0)


@cache
def tensor_sizes(spec: ModelSpec) -> tuple[int, ...]:
    """Return the elements of every tensor, in the order of names."""
    return tuple(prod(shape) for _, shape in spec.parameters())


@cache
def blocks_of_tensors(spec: ModelSpec) -> tuple[int, ...]:
    """Return for every tensor, in the order of names, how many blocks came before; -1 before the first block."""
    found: list[int] = []
    stack: dict[int, int] = {}
    num_blocks = 0

    def close_stack() -> None:
        nonlocal num_blocks
        for layer in sorted(stack):
            found.extend([num_blocks] * stack[layer])
            num_blocks += 1
        stack.clear()

    for group in spec.groups:
        if group.role is GroupRole.BLOCK:
            for layer in group.layers:
                stack[layer] = stack.get(layer, 0) + len(group.tensors)
        else:
            close_stack()
            found.extend([num_blocks or -1] * len(group.tensors))
    close_stack()
    return tuple(found)
