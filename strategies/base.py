"""`Strategy`: how model states and buffers lie on one GPU at each moment of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from strategies.estimate import CauseBytes
from strategies.job import Job
from strategies.memory.model_states import Sharding
from strategies.model_spec import ModelSpec
from strategies.plan import Buckets, Plan

NOTHING = CauseBytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockState:
    """What lives, on top of ``resident``, while one block's backward runs."""

    num_done: int
    """Blocks whose backward is over."""
    new_gradient: int | None = 0
    """Bytes of the gradient that an operator has just made; 0 between two of them, None for any moment of the block."""
    causes: CauseBytes
    counts_new_gradient: bool = True
    """Whether ``causes`` has the new gradient in it; else it comes on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """Bytes of everything but activations and logits, in the steady state (from the second step on).

    ``resident`` is there all the time; the others come on top of it at their moment.
    """

    resident: CauseBytes
    initialise: CauseBytes
    """In full, not on top of ``resident``: optimizer states do not exist yet."""
    forward: CauseBytes
    """At the end of a forward, gradients of earlier micro batches included: all activations are there."""
    forward_start: CauseBytes = NOTHING
    """The highest moment of a forward before the head: the gathers of blocks."""
    forward_gather: CauseBytes = NOTHING
    """The highest moment of a forward at which weights are gathered before a block runs: no working tensor lives."""
    last_gather: CauseBytes = NOTHING
    """While the last block's weights are gathered in forward: all other blocks keep their activations already."""
    backward_start: CauseBytes
    """When backward begins: no gradient of this micro batch yet."""
    first_gradient: CauseBytes
    """When the head's gradient is there: all activations are, but most of the logits are gone."""
    after_head: CauseBytes = NOTHING
    """Between the head's backward and the last block's."""
    in_blocks: tuple[BlockState, ...]
    """While backward is in the blocks."""
    embedding_backward: CauseBytes = NOTHING
    """After the blocks, when no activation is left: the embedding's gradient, the last reductions."""
    optimizer_step: CauseBytes
    evaluation: CauseBytes
    evaluation_start: CauseBytes = NOTHING
    """Like ``forward_start``."""
    evaluation_gather: CauseBytes = NOTHING
    """Like ``forward_gather``."""
    save: CauseBytes = NOTHING
    """While weights are gathered for a checkpoint, tensor by tensor."""

    def __hash__(self) -> int:
        """Of a few fields: layouts are looked up for every estimate."""
        return hash((self.resident.parameters, self.resident.optimizer_states, self.embedding_backward.gradients))

    @property
    def backward(self) -> tuple[CauseBytes, ...]:
        """Every moment of a backward, on top of ``resident``."""
        in_blocks = (state.causes for state in self.in_blocks)
        return (self.backward_start, self.first_gradient, self.after_head, *in_blocks, self.embedding_backward)


class Strategy(ABC):
    """Stateless; imports no framework."""

    @abstractmethod
    def sharding(self, data_parallel_size: int) -> Sharding:
        """Return the sharding degree of each model state (1 = replicated)."""

    @abstractmethod
    def buckets(self, spec: ModelSpec, job: Job) -> Buckets:
        """Return communication buffers sized to the model."""

    @abstractmethod
    def layout(
        self, spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int, on_cpu: bool = False
    ) -> StateLayout:
        """Return what one rank holds at each moment, for the rank that holds most.

        ``on_cpu``: the CPU is the device, so that the model is on it from the start and small copies are others.
        """


def largest_tensor_params(spec: ModelSpec) -> int:
    """Return the elements of the largest single tensor: the unit in which gathers arrive."""
    return max(tensor.num_params for group in spec.groups for tensor in group.tensors)


def largest_trained_params(spec: ModelSpec) -> int:
    """Return the elements of the largest tensor that is trained: the unit in which gradients arrive."""
    return max(tensor.num_params for group in spec.groups for tensor in group.tensors if tensor.is_trained)
