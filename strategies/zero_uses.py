"""The modules of a forward and a backward under ZeRO stage 3, and how far away the next use of a weight is.

Source: deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (reset_step, __params_to_release).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from math import inf, prod

from strategies.model_spec import ModelSpec
from strategies.zero_modules import STACKED_DIMENSIONS, ModuleStep, module_steps


class Uses:
    """The order in which modules run, as DeepSpeed has recorded it."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        forward: Sequence[ModuleStep],
        checkpoint_every: int,
        frozen: frozenset[int] = frozenset(),
    ) -> None:
        """``frozen``: indices of weights without a gradient; backward ends at the first module that has another one."""
        self._checkpoint_every = checkpoint_every
        trained = (number for number, step in enumerate(forward) if not frozen.issuperset(step.weights))
        self._first_backward = next(trained, len(forward)) if frozen else 0
        self._stacked = {index for index, shape in enumerate(shapes) if len(shape) == STACKED_DIMENSIONS}
        self.num_blocks = max(step.block for step in forward)
        self.num_forward = len(forward)
        self.steps = (*forward, *self._backward_steps(forward))
        self._count_elements([prod(shape) for shape in shapes])
        self._later: list[dict[int, int]] = [{}] * len(self.steps)
        following: dict[int, int] = {}
        for number in reversed(range(len(self.steps))):
            self._later[number] = {index: following.get(index, -1) for index in self.steps[number].weights}
            following.update(dict.fromkeys(self.steps[number].weights, number))

    def is_checkpointed(self, block: int) -> bool:
        """Whether a block runs forward again in backward."""
        return bool(self._checkpoint_every) and 0 <= block < self.num_blocks and block % self._checkpoint_every == 0

    def holds_experts(self, step: ModuleStep) -> bool:
        """Whether a module has stacked weights of experts."""
        return not self._stacked.isdisjoint(step.weights)

    def distance_to_next(self, number: int, weight: int) -> float:
        """Return the elements that DeepSpeed counts between a step and a weight's next use; infinite without one."""
        later = self._later[number][weight]
        if later < 0:
            return inf
        if self.holds_experts(self.steps[number]) and number < self.num_forward:
            # The whole model is a module too, the first one of backward, and has all experts in it.
            return self._traversed_deep[self.num_forward] - self._traversed_deep[number + 1]
        return self._traversed[later] - self._traversed[number + 1]

    def _backward_steps(self, forward: Sequence[ModuleStep]) -> Iterator[ModuleStep]:
        numbered = list(enumerate(forward))
        for block, steps in groupby(reversed(numbered), key=lambda pair: pair[1].block):
            of_block = list(steps)
            backward = [replace(step, is_backward=True) for number, step in of_block if number >= self._first_backward]
            if self.is_checkpointed(block) and backward:
                yield from (step for _, step in reversed(of_block))
            yield from backward

    def _count_elements(self, sizes: Sequence[int]) -> None:
        self._traversed, self._traversed_deep = [0], [0]
        for step in self.steps:
            elements = sum(sizes[index] for index in step.weights)
            # A search that starts at another module does not look into blocks of experts; one that starts there counts
            # every module inside another one again: about twice.
            self._traversed.append(self._traversed[-1] + (0 if self.holds_experts(step) else elements))
            inside = 0 <= step.block < self.num_blocks
            self._traversed_deep.append(self._traversed_deep[-1] + elements * (2 if inside else 1))


@cache
def uses_of(spec: ModelSpec, checkpoint_every: int) -> Uses:
    """Return the modules of a step; ``checkpoint_every``: blocks 0, k, 2k, ... run again in backward, 0 for none."""
    tensors = list(spec.tensors())
    frozen = frozenset(index for index, tensor in enumerate(tensors) if not tensor.is_trained)
    return Uses([tensor.shape for tensor in tensors], module_steps(spec), checkpoint_every, frozen)
