"""Moments of models of two stacks: the blocks of each are a kind of their own, at their own time of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.form_moments import (
    BlockMoments,
    HeadCut,
    Levels,
    added_by_block,
    allocations,
    common_start,
    first_logits,
    last_allocation,
    window,
    without_gradient,
)
from benchmarks.form_traces import DEPTH, Events
from strategies.estimate import Phase


class _Pass(NamedTuple):
    """One stack in a forward pass."""

    added: Any
    """(part, feature): what a block adds."""
    base: Any
    """(part, feature): level where the head begins, without what blocks add."""
    moments: Levels


def stack_moments(
    encoder: Mapping[Phase, Events], decoder: Mapping[Phase, Events], cut: HeadCut
) -> tuple[BlockMoments, BlockMoments]:
    """Return the moments of both stacks, from two traces of which one has a block more in the one, one in the other.

    The encoder runs before the decoder in forward, and after it in backward: as in one stack, levels leave out what
    blocks keep that are there at the moment.
    """
    passes = _passes(encoder[Phase.FORWARD], decoder[Phase.FORWARD], head=cut.forward)
    low, high = _backward(encoder[Phase.BACKWARD], decoder[Phase.BACKWARD], passes, head=cut.backward)
    if Phase.EVALUATION in encoder:
        evaluations = _passes(encoder[Phase.EVALUATION], decoder[Phase.EVALUATION], head=cut.evaluation)
        for found, again in zip((low, high), evaluations, strict=True):
            found.evaluation, found.evaluation_kept, found.evaluation_base = again.moments, again.added, again.base
    return low, high


def head_of_stacks(plain: Mapping[Phase, Events], recomputing: Mapping[Phase, Events]) -> HeadCut:
    """Return where head and loss begin: with the logits, and in backward up to where blocks are computed again.

    The first block of a stack whose backward runs is not like the others: it makes what those add to.
    """
    forward, evaluation = plain[Phase.FORWARD], plain[Phase.EVALUATION]
    return HeadCut(
        forward=last_allocation(forward.keys) - first_logits(forward),
        backward=common_start(plain[Phase.BACKWARD].keys, recomputing[Phase.BACKWARD].keys),
        evaluation=last_allocation(evaluation.keys) - first_logits(evaluation),
    )


def _passes(encoder: Events, decoder: Events, *, head: int) -> tuple[_Pass, _Pass]:
    first, second = window(encoder), window(decoder)
    low, high = added_by_block(encoder, first), added_by_block(decoder, second)
    start = last_allocation(decoder.keys) - head
    of_all = DEPTH * (low + high)
    base = decoder.levels[start - 1] - of_all
    return (
        _Pass(low, base, allocations(encoder, first.earliest, second.earliest) - DEPTH * low),
        _Pass(high, base, allocations(decoder, second.earliest, start) - of_all),
    )


def _backward(
    encoder: Events, decoder: Events, passes: tuple[_Pass, _Pass], *, head: int
) -> tuple[BlockMoments, BlockMoments]:
    last, first = window(encoder), window(decoder)
    low, high = -added_by_block(encoder, last), -added_by_block(decoder, first)
    base = without_gradient(decoder.levels[head - 1]) - DEPTH * (low + high)
    below = DEPTH * low
    again = (last.latest - last.length, last.latest), (first.latest - first.length, first.latest)
    of_encoder = BlockMoments(
        kept_in_forward=passes[0].added,
        kept=low,
        forward_base=passes[0].base,
        backward_base=base,
        forward=passes[0].moments,
        top=allocations(encoder, last.earliest, last.latest) - below,
        bottom=np.concatenate(
            [allocations(encoder, last.latest, len(encoder.keys)), allocations(encoder, *again[0]) - low]
        ),
    )
    of_decoder = BlockMoments(
        kept_in_forward=passes[1].added,
        kept=high,
        forward_base=passes[1].base,
        backward_base=base,
        forward=passes[1].moments,
        top=allocations(decoder, head, first.latest) - DEPTH * high - below,
        bottom=np.concatenate(
            [
                allocations(decoder, first.latest, last.earliest) - below,
                allocations(decoder, *again[1]) - high - below,
            ]
        ),
    )
    return of_encoder, of_decoder
