"""Trace a model of any depth at the cost of a shallow one."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from scaling.trace.engine import EngineSpec
from scaling.trace.errors import ExtrapolationError
from scaling.trace.extrapolate import extrapolate_depth
from scaling.trace.log import TraceLog
from scaling.trace.options import TraceOptions
from scaling.trace.step import Batch, Loss, trace_step

ModelAtDepth = Callable[[int], Callable[[], nn.Module]]
"""From a number of blocks to what makes the model with so many."""


def trace_deep(
    model: ModelAtDepth,
    batch: Batch,
    options: TraceOptions,
    *,
    depth: int,
    period: int = 1,
    loss: Loss | None = None,
    engine: EngineSpec | None = None,
) -> TraceLog:
    """Return the log of ``model(depth)``, from three shallow traces where these tell all, else from the full one.

    `period`: after how many blocks their kinds repeat. Both ways give the same log: what the shallow traces do not
    explain, such as buckets that end in the middle of a block, is refused there and traced in full here.

    Raises:
        TraceError: an operation needs data; the message names it and its module.
    """
    shallow = shallow_depths(depth, period=period)
    if shallow is not None:
        try:
            logs = {each: trace_step(model(each), batch, options, loss=loss, engine=engine) for each in shallow}
            return extrapolate_depth(logs, depth)
        except ExtrapolationError:
            pass  # the full trace below knows what happens
    return trace_step(model(depth), batch, options, loss=loss, engine=engine)


def shallow_depths(depth: int, *, period: int) -> tuple[int, int, int] | None:
    """Return the three depths to trace for ``depth``; None where tracing it in full costs no more."""
    smallest = smallest_depths(period)
    more = (depth - smallest[0]) % period
    depths = (smallest[0] + more, smallest[1] + more, smallest[2] + more)
    return depths if sum(depths) < depth else None


def smallest_depths(period: int) -> tuple[int, int, int]:
    """Return the three smallest depths from which deeper models are continued.

    Two periods and two more blocks, since the first and the last are unlike the others: the smallest base that worked
    in all families tried (benchmarks/results/trace_extrapolation.md).
    """
    base = 2 * period + 2
    return base, base + period, base + 3 * period
