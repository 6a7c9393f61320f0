"""Extrapolated logs against full traces of the same size."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.trace_families import family_batch, family_model
from scaling.trace import (
    ExtrapolationError,
    Recompute,
    SingleDevice,
    TraceLog,
    TraceOptions,
    TracePrecision,
    extrapolate_depth,
    extrapolate_size,
    replay,
    trace_deep,
    trace_step,
)
from scaling.trace.deep import shallow_depths
from scaling.trace.log import Row
from tests.scaling.trace.builders import BACKWARD, FORWARD, freed, log_of, made

ONE_STEP = TraceOptions(num_steps=1)
CASES = (
    ("llama", (4, 5, 7), 9, TraceOptions(activation_checkpointing=Recompute.FULL)),
    ("gpt2", (4, 5, 7), 8, replace(ONE_STEP, precision=TracePrecision.BF16_AUTOCAST)),
    pytest.param("t5", (4, 5, 7), 8, ONE_STEP, marks=pytest.mark.slow),
    pytest.param("gemma2", (6, 8, 12), 14, ONE_STEP, marks=pytest.mark.slow),
)


def _log(family: str, num_layers: int, options: TraceOptions, **size: int) -> TraceLog:
    batch = family_batch(family, **{"seq_len": 32, **size})
    return trace_step(family_model(family, num_layers=num_layers), batch, options)


@pytest.mark.parametrize(("family", "depths", "depth", "options"), CASES)
def test_depth_matches_full_trace(family: str, depths: tuple[int, int, int], depth: int, options: TraceOptions) -> None:
    """Two stacks (T5) and blocks of two kinds (Gemma 2) included; all families in benchmarks/trace_extrapolation.py."""
    found = extrapolate_depth({each: _log(family, each, options) for each in depths}, depth)
    full = _log(family, depth, options)
    assert found.equals(full)
    assert replay(found) == replay(full)


class Alternating(nn.Module):
    """Blocks of two widths in turn, so that what repeats is a pair of them."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8, bias=bool(index % 2)) for index in range(num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = F.gelu(block(x))
        return x.sum()


def _alternating(num_blocks: int) -> TraceLog:
    return trace_step(partial(Alternating, num_blocks), {"x": torch.zeros(4, 8)}, TraceOptions())


def test_depth_of_alternating_blocks_matches_full_trace() -> None:
    found = extrapolate_depth({each: _alternating(each) for each in (6, 8, 12)}, 20)
    assert found.equals(_alternating(20))


def test_depth_against_the_period_is_refused() -> None:
    with pytest.raises(ExtrapolationError, match="trace the full depth"):
        extrapolate_depth({each: _alternating(each) for each in (6, 7, 9)}, 20)


@pytest.mark.parametrize("period", [1, 2])
def test_deep_trace_is_the_full_trace_also_of_a_wrong_period(period: int) -> None:
    batch = {"x": torch.zeros(4, 8)}
    found = trace_deep(lambda depth: partial(Alternating, depth), batch, TraceOptions(), depth=30, period=period)
    assert found.equals(_alternating(30))


def test_depth_matches_full_trace_when_clipping_stacks_one_norm_a_parameter() -> None:
    engine = SingleDevice(gradient_clipping=1.0)

    def traced(num_layers: int) -> TraceLog:
        return trace_step(
            family_model("llama", num_layers=num_layers), family_batch("llama"), TraceOptions(), engine=engine
        )

    assert extrapolate_depth({each: traced(each) for each in (4, 5, 7)}, 9).equals(traced(9))


def test_depth_of_one_of_the_given_logs_is_that_log() -> None:
    logs = {each: _alternating(each) for each in (6, 8, 12)}
    assert extrapolate_depth(logs, 8).equals(logs[8])


@pytest.mark.parametrize(
    ("depths", "depth", "message"),
    [
        ((3, 4), 9, "must be three of the form a, a + p, a + 3p"),
        ((3, 4, 5), 9, "must be three of the form a, a + p, a + 3p"),
        ((4, 6, 10), 9, "depth=9 is not 4 plus a multiple of 2"),
        ((4, 6, 10), 2, "depth=2 is not 4 plus a multiple of 2"),
    ],
)
def test_depths_of_another_form_are_refused(depths: tuple[int, ...], depth: int, message: str) -> None:
    log = log_of([(FORWARD, [made(0, 1)])])
    with pytest.raises(ExtrapolationError, match=re.escape(message)):
        extrapolate_depth(dict.fromkeys(depths, log), depth)


def test_logs_of_different_phases_are_refused() -> None:
    logs = {each: log_of([(FORWARD if each < 7 else BACKWARD, [made(0, 1)])]) for each in (4, 5, 7)}
    with pytest.raises(ExtrapolationError, match="different phases"):
        extrapolate_depth(logs, 9)


def test_storage_freed_out_of_step_with_the_depth_is_refused() -> None:
    """Each block frees what the block before it made, but in the third log the one before that."""

    def blocks(num_blocks: int, behind: int) -> TraceLog:
        rows = [row for block in range(num_blocks) for row in (made(block, 8), *_freed_behind(block, behind))]
        return log_of([(FORWARD, rows)])

    with pytest.raises(ExtrapolationError):
        extrapolate_depth({4: blocks(4, 1), 5: blocks(5, 1), 7: blocks(7, 2)}, 9)


def _freed_behind(block: int, behind: int) -> list[Row]:
    return [freed(block - behind, 8)] if block >= behind else []


def test_bytes_that_grow_unevenly_with_the_depth_are_refused() -> None:
    logs = {each: log_of([(FORWARD, [made(0, each * each)])]) for each in (4, 5, 7)}
    with pytest.raises(ExtrapolationError, match="do not grow evenly with the depth"):
        extrapolate_depth(logs, 9)


@pytest.mark.parametrize(
    ("depth", "period", "depths"),
    [
        (80, 1, (4, 5, 7)),
        (16, 1, None),
        (42, 2, (6, 8, 12)),
        (41, 2, (7, 9, 13)),
        (62, 6, None),
        (126, 6, (18, 24, 36)),
    ],
)
def test_shallow_depths_respect_the_period_and_cost_less(
    depth: int, period: int, depths: tuple[int, int, int] | None
) -> None:
    assert shallow_depths(depth, period=period) == depths
    if depths is not None:
        assert (depth - depths[0]) % period == 0
        assert sum(depths) < depth


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_batch_matches_full_trace(family: str) -> None:
    logs = {size: _log(family, 1, ONE_STEP, micro_batch_size=size) for size in (2, 3, 4)}
    assert extrapolate_size(logs, 8, degree=1).equals(_log(family, 1, ONE_STEP, micro_batch_size=8))


@pytest.mark.parametrize(("family", "degree"), [("llama", 1), ("gemma2", 2), ("t5", 2)])
def test_length_matches_full_trace(family: str, degree: int) -> None:
    """In steps of 128, the rows that CUDA's attention kernels work on at once."""
    sizes = range(128, 128 * (degree + 3), 128)
    logs = {size: _log(family, 1, ONE_STEP, seq_len=size) for size in sizes}
    assert extrapolate_size(logs, 1024, degree=degree).equals(_log(family, 1, ONE_STEP, seq_len=1024))


def test_scores_that_grow_with_the_square_are_refused_as_even_growth() -> None:
    logs = {size: _log("gemma2", 1, ONE_STEP, seq_len=size) for size in (128, 256, 384)}
    with pytest.raises(ExtrapolationError, match="not a polynomial of degree 1"):
        extrapolate_size(logs, 1024, degree=1)


def test_window_between_the_logs_and_the_size_is_refused() -> None:
    logs = {size: _log("mistral-window", 1, ONE_STEP, seq_len=size) for size in (4, 8, 12)}
    with pytest.raises(ExtrapolationError, match="on the other side of 16"):
        extrapolate_size(logs, 64, degree=1, thresholds=(16,))


def test_logs_across_a_window_are_refused() -> None:
    logs = {size: _log("mistral-window", 1, ONE_STEP, seq_len=size) for size in (8, 16, 24)}
    with pytest.raises(ExtrapolationError, match="differ in more than their bytes"):
        extrapolate_size(logs, 64, degree=1)


@pytest.mark.parametrize(
    ("sizes", "size", "degree", "message"),
    [
        ((2, 3, 4), 1, 1, "a size of 1 takes other paths"),
        ((1, 2, 3), 8, 1, "a size of 1 takes other paths"),
        ((2, 3), 8, 1, "must be 3 evenly spaced ones"),
        ((2, 3, 5), 8, 1, "must be 3 evenly spaced ones"),
        ((2, 3, 4), 8, 2, "must be 4 evenly spaced ones"),
        ((4, 6, 8), 9, 1, "size=9 is not 4 plus a multiple of 2"),
    ],
)
def test_sizes_of_another_form_are_refused(sizes: tuple[int, ...], size: int, degree: int, message: str) -> None:
    log = log_of([(FORWARD, [made(0, 1)])])
    with pytest.raises(ExtrapolationError, match=message):
        extrapolate_size(dict.fromkeys(sizes, log), size, degree=degree)
