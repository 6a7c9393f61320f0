"""The states of a backward, block by block: which of them can be the highest, and gradients that are all kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strategies.base import BlockState
from strategies.estimate import CauseBytes
from strategies.parameter_order import ParameterOrder


def that_may_peak(states: Iterable[BlockState]) -> tuple[BlockState, ...]:
    """Return the states that can be the highest, whatever activations a block frees.

    Activations fall by the same bytes from block to block. So of the states beside one kind of gradient only those
    matter that a line of some negative slope touches from above.
    """
    by_gradient: dict[int | None, dict[int, BlockState]] = {}
    for state in states:
        highest = by_gradient.setdefault(state.new_gradient, {})
        before = highest.get(state.num_done)
        if before is None or state.causes.total_bytes > before.causes.total_bytes:
            highest[state.num_done] = state
    return tuple(state for highest in by_gradient.values() for state in _hull(list(highest.values())))


def _hull(states: Sequence[BlockState]) -> list[BlockState]:
    hull: list[BlockState] = []
    for state in sorted(states, key=lambda each: each.num_done):
        if hull and state.causes.total_bytes <= hull[-1].causes.total_bytes:
            continue
        while len(hull) > 1 and _rise(hull[-2], hull[-1]) <= _rise(hull[-1], state):
            hull.pop()
        hull.append(state)
    return hull


def _rise(one: BlockState, two: BlockState) -> float:
    return (two.causes.total_bytes - one.causes.total_bytes) / (two.num_done - one.num_done)


def growing_gradients(order: ParameterOrder, weight_bytes: int) -> tuple[BlockState, ...]:
    """Return the states where every gradient stays in memory of its own from the moment it is made."""
    elements, states = order.tied_elements, []
    for gradient in order.backward:
        if gradient.is_embedding:
            break
        elements += gradient.size
        causes = CauseBytes(gradients=weight_bytes * elements)
        states.append(BlockState(num_done=gradient.num_done, new_gradient=weight_bytes * gradient.size, causes=causes))
        states.append(BlockState(num_done=gradient.num_done, causes=causes))
    return that_may_peak(states)
