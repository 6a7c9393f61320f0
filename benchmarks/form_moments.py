"""From traced events to the few moments that can be the highest of their phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.form_traces import COLUMN, DEPTH, PARTS, Events, Key
from scaling.ownership import Cause
from scaling.storage_log import EventKind
from scaling.trace.log import CAUSES
from strategies.estimate import Phase

_GRADIENTS, _LOGITS = CAUSES.index(Cause.GRADIENTS), CAUSES.index(Cause.LOGITS)
HALF_BYTES = 2
Levels = Any
"""(moment, part, feature), bytes per feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where one more block repeats the events of another."""

    latest: int
    """Index before which the deeper log's additional events can be put at the latest."""
    earliest: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadCut:
    """Events of head and loss: the last of forward from ``forward``, the first of backward up to ``backward``."""

    forward: int
    """Counted back from the last allocation of forward, which is 0."""
    backward: int
    evaluation: int
    """As ``forward``."""


@dataclass(slots=True, kw_only=True, eq=False)
class BlockMoments:
    """What one kind of block keeps, and the moments in and around it; levels are free of what blocks keep."""

    kept_in_forward: Any
    """(part, feature): what a block adds from its forward to the end of forward."""
    kept: Any
    """Likewise to its backward."""
    forward_base: Any
    """(part, feature): level where head and loss begin, without the blocks' own."""
    backward_base: Any
    """Where they end in backward."""
    forward: Levels
    top: Levels
    """In the backward of the last block: every block is kept."""
    bottom: Levels
    """In the backward of the first block: no other is kept."""
    evaluation: Levels | None = None
    evaluation_kept: Any = None
    """(part, feature): what a block adds to the end of an evaluation: nothing outside of autocast."""
    evaluation_base: Any = None


def window(events: Events) -> Window:
    """Return where ``events`` repeat with depth.

    Raises:
        ValueError: the deeper log does not differ by one repeated stretch.
    """
    keys, deeper = _without_last_frees(events.keys), _without_last_frees(events.deeper)
    length = len(deeper) - len(keys)
    latest = common_start(keys, deeper)
    earliest = len(keys) - common_start(keys[::-1], deeper[::-1])
    if length <= 0 or earliest > latest:
        raise ValueError(f"no repeated stretch: {len(keys)} and {len(deeper)} events, {earliest} > {latest}")
    if latest < length:
        raise ValueError(f"the repeated stretch of {length} events stands once in the first {latest}")
    return Window(latest=latest, earliest=earliest, length=length)


def head_cut(standard: Mapping[Phase, Events], other: Mapping[Phase, Events]) -> HeadCut:
    """Return what two traces that differ in the loss alone do not share."""
    forward, backward = standard[Phase.FORWARD].keys, standard[Phase.BACKWARD].keys
    shared_start = common_start(forward, other[Phase.FORWARD].keys)
    shared_end = _common_end(backward, other[Phase.BACKWARD].keys)
    evaluation = standard[Phase.EVALUATION].keys
    same = common_start(evaluation, other[Phase.EVALUATION].keys)
    return HeadCut(
        forward=last_allocation(forward) - shared_start,
        backward=len(backward) - shared_end,
        evaluation=last_allocation(evaluation) - same,
    )


def block_moments(phases: Mapping[Phase, Events], cut: HeadCut) -> BlockMoments:
    """Return the moments of one setting, head and loss left out."""
    forward, backward = phases[Phase.FORWARD], phases[Phase.BACKWARD]
    there, back = window(forward), window(backward)
    kept_in_forward = added_by_block(forward, there)
    kept = -added_by_block(backward, back)
    start = last_allocation(forward.keys) - cut.forward
    in_blocks = allocations(forward, there.earliest, start)
    top = allocations(backward, cut.backward, back.latest)
    ends = allocations(backward, back.latest, len(backward.keys))
    again = allocations(backward, back.latest - back.length, back.latest) - kept
    result = BlockMoments(
        kept_in_forward=kept_in_forward,
        kept=kept,
        forward_base=forward.levels[start - 1] - DEPTH * kept_in_forward,
        backward_base=without_gradient(backward.levels[cut.backward - 1]) - DEPTH * kept,
        forward=in_blocks - DEPTH * kept_in_forward,
        top=top - DEPTH * kept,
        bottom=np.concatenate([ends, again]),
    )
    if Phase.EVALUATION in phases:
        _add_evaluation(result, phases[Phase.EVALUATION], cut)
    return result


@dataclass(slots=True, kw_only=True, eq=False)
class HeadMoments:
    """Moments of head and loss, on top of the level where they begin or end."""

    forward: Levels
    after_model: Levels
    """Those of forward after the model's own, where the cut-off is known: under autocast, its casts are gone."""
    before_gradient: Levels
    """In backward, before the first gradient of a weight is there."""
    after_gradient: Levels
    evaluation: Levels
    evaluation_after_model: Levels


def head_moments(
    phases: Mapping[Phase, Events], cut: HeadCut, *, like: Mapping[Phase, Events], loss_is_apart: bool
) -> HeadMoments:
    """Return the moments of one loss; ``like`` is the trace that ``cut`` counts in.

    ``loss_is_apart``: tell the loss's from those of the model's own forward.
    """
    forward, backward = phases[Phase.FORWARD], phases[Phase.BACKWARD]
    start = last_allocation(like[Phase.FORWARD].keys) - cut.forward
    end = _end_of_head(like[Phase.BACKWARD].keys, backward.keys, cut.backward)
    first = next((i for i in range(end) if np.any(backward.levels[i, PARTS.index("gradients")])), end)
    base = without_gradient(like[Phase.BACKWARD].levels[cut.backward - 1])
    evaluation = phases[Phase.EVALUATION]
    begin = last_allocation(like[Phase.EVALUATION].keys) - cut.evaluation
    returns = _end_of_model(forward) if loss_is_apart else len(forward.keys)
    returns_again = _end_of_model(evaluation) if loss_is_apart else len(evaluation.keys)
    before, before_again = forward.levels[start - 1], evaluation.levels[begin - 1]
    return HeadMoments(
        forward=allocations(forward, start, returns) - before,
        after_model=allocations(forward, returns, len(forward.keys)) - before,
        before_gradient=allocations(backward, 0, first) - base,
        after_gradient=allocations(backward, first, end) - base,
        evaluation=allocations(evaluation, begin, returns_again) - before_again,
        evaluation_after_model=_without_cast_head(
            allocations(evaluation, returns_again, len(evaluation.keys)) - before_again
        ),
    )


def first_logits(events: Events) -> int:
    """Return the index at which the head's product is made; a cast of the head's weight may have its width too."""
    return next(index for index in _logits(events) if not events.keys[index].op.startswith("aten._to_copy"))


def _end_of_model(events: Events) -> int:
    """Return the index at which the loss begins: with the first logits of another size than the head's."""
    product = first_logits(events)
    size = events.keys[product].num_bytes
    return next(index for index in _logits(events) if index > product and events.keys[index].num_bytes != size)


def _logits(events: Events) -> list[int]:
    return [index for index, key in enumerate(events.keys) if key.kind == EventKind.ALLOCATE and key.cause == _LOGITS]


def _without_cast_head(levels: Levels) -> Levels:
    """Return levels without the 16-bit copy of the head's weight, which no backward needs."""
    result = levels.copy()
    column = result[:, PARTS.index("activations"), COLUMN["V*h"]]
    column[column >= HALF_BYTES] -= HALF_BYTES
    return result


_LAST_EVENTS = 16
"""Of backward, in which a tied head's gradient meets the embedding's: these may differ between losses."""
_ENOUGH = 24
"""Events that are alike only where both logs are in the same block."""


def _common_end(one: Sequence[Key], two: Sequence[Key]) -> int:
    """Return how many events before the end of ``one`` the end is that both share, its very last ones left out."""
    best = 0
    for cut_one in range(_LAST_EVENTS):
        for cut_two in range(_LAST_EVENTS):
            shared = common_start(one[len(one) - 1 - cut_one :: -1], two[len(two) - 1 - cut_two :: -1])
            best = max(best, shared + cut_one if shared > 2 * _LAST_EVENTS else 0)
    return best


def _end_of_head(like: Sequence[Key], keys: Sequence[Key], end: int) -> int:
    """Return where in ``keys`` the events are that follow ``end`` in ``like``."""
    wanted = list(like[end : end + _ENOUGH])
    return next(index for index in range(len(keys)) if list(keys[index : index + _ENOUGH]) == wanted)


def last_allocation(keys: Sequence[Key]) -> int:
    """Return the index of the last allocation."""
    return max(index for index, key in enumerate(keys) if key.kind == EventKind.ALLOCATE)


def _add_evaluation(moments: BlockMoments, events: Events, cut: HeadCut) -> None:
    there = window(events)
    start = last_allocation(events.keys) - cut.evaluation
    added = moments.evaluation_kept = added_by_block(events, there)
    moments.evaluation = allocations(events, there.earliest, start) - DEPTH * added
    moments.evaluation_base = events.levels[start - 1] - DEPTH * added


def added_by_block(events: Events, found: Window) -> Any:
    end = found.latest - max(0, found.latest - found.earliest - found.length) // 2  # midway, away from both ends
    after, before = events.levels[end - 1], events.levels[end - found.length - 1]
    return without_gradient(after) - without_gradient(before)


def without_gradient(level: Any) -> Any:
    result = level.copy()
    result[PARTS.index("gradients")] = 0
    return result


def allocations(events: Events, first: int, end: int) -> Levels:
    indices = [index for index in range(first, end) if events.is_allocation(index)]
    levels = events.levels[indices] if indices else np.zeros((0, *events.levels.shape[1:]))
    gradients = PARTS.index("gradients")
    for row, index in enumerate(indices):
        if index and _ends_a_product(events.keys[index - 1], events.keys[index]):
            levels[row, gradients] = events.levels[index - 1, gradients]
    return levels


def _ends_a_product(before: Key, key: Key) -> bool:
    """Whether one backward makes both: a weight's gradient is added to those kept when its input's is there too."""
    products = before.op.startswith("aten.mm.") and key.op.startswith("aten.mm.")
    return products and before.kind == key.kind == EventKind.ALLOCATE and before.cause == _GRADIENTS != key.cause


def _without_last_frees(keys: Sequence[Key]) -> Sequence[Key]:
    return keys[: last_allocation(keys) + 1]


def common_start(one: Sequence[Key], two: Sequence[Key]) -> int:
    for index, (first, second) in enumerate(zip(one, two, strict=False)):
        if first != second:
            return index
    return min(len(one), len(two))
