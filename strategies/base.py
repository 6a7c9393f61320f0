"""`Strategy`: how model states and buffers lie on one GPU at each moment of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from strategies.estimate import CauseBytes
from strategies.job import Job
from strategies.memory.model_states import Sharding
from strategies.model_spec import ModelSpec
from strategies.plan import Buckets, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """Bytes of everything but activations and logits, in the steady state (from the second step on).

    ``resident`` is there all the time; the others come on top of it at their moment.
    """

    resident: CauseBytes
    initialise: CauseBytes
    """In full, not on top of ``resident``: optimizer states do not exist yet."""
    forward: CauseBytes
    """While a forward runs, gradients of earlier micro batches included."""
    backward_start: CauseBytes
    """When backward begins: no gradient of this micro batch yet."""
    first_gradient: CauseBytes
    """When the head's gradient is there: all activations are, but most of the logits are gone."""
    first_reduction: CauseBytes
    """When the first full bucket is reduced: little of backward is done, but gradient buffers are there."""
    backward_end: CauseBytes
    """When backward is at the first block: nearly all gradients exist."""
    optimizer_step: CauseBytes
    evaluation: CauseBytes


class Strategy(ABC):
    """Stateless; imports no framework."""

    @abstractmethod
    def sharding(self, data_parallel_size: int) -> Sharding:
        """Return the sharding degree of each model state (1 = replicated)."""

    @abstractmethod
    def buckets(self, spec: ModelSpec, job: Job) -> Buckets:
        """Return communication buffers sized to the model."""

    @abstractmethod
    def layout(self, spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int) -> StateLayout:
        """Return what one rank holds at each moment."""


def largest_tensor_params(spec: ModelSpec) -> int:
    """Return the elements of the largest single tensor: the unit in which gradients and gathers arrive."""
    return max(tensor.num_params for group in spec.groups for tensor in group.tensors)
