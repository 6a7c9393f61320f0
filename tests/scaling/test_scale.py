"""How times grow: the line through step times, what is stored of saves, and a planning process."""

from __future__ import annotations

import json
from functools import partial

import pytest

from benchmarks import scale
from benchmarks.scale_report import Planning, Steps, report
from scaling.local_ranks import run_ranks
from strategies.plan import StrategyName


def test_a_line_tells_the_step_from_its_micro_batches() -> None:
    steps = Steps(strategy="ddp", seconds={count: 0.5 + 0.25 * count for count in (1, 2, 4, 8)})
    offset, slope = steps.line()
    assert offset == pytest.approx(0.5)
    assert slope == pytest.approx(0.25)
    assert steps.largest_deviation() == pytest.approx(0, abs=1e-12)
    bent = Steps(strategy="ddp", seconds={1: 1.0, 2: 2.0, 3: 1.0})  # least squares: 4/3 everywhere
    assert bent.largest_deviation() == pytest.approx(1 / 3)


def test_stored_saves_are_read_with_their_kinds() -> None:
    saves = scale.stored_saves(json.loads((scale.RESULTS / "save_cost.json").read_text())["measured"])
    assert {save.ranks for save in saves} == {1, 2, 4}
    assert all({"ours", "torch"} <= save.seconds.keys() for save in saves)


def test_the_report_marks_what_does_not_fit() -> None:
    planning = [
        Planning(model="m", num_params=1, gpus=gpus, exit_code=code, fastest_s=0.5, median_s=0.6)
        for gpus, code in ((1, 3), (4, 0))
    ]
    saves = scale.stored_saves(json.loads((scale.RESULTS / "save_cost.json").read_text())["measured"])
    steps = [Steps(strategy="ddp", seconds={1: 1.0, 2: 2.0})]
    text = report(planning, steps, saves, load=0.4)
    assert "| m | 0.50* | 0.50 |" in text
    assert "before it began: 0.4" in text


def test_planning_is_a_process_with_an_outcome() -> None:
    (found,) = scale.planned([("llama-3.1-8b", 16)], runs=1)
    assert (found.num_params, found.exit_code) == (8_030_261_248, 0)
    assert 0 < found.fastest_s == found.median_s < 60


@pytest.mark.distributed
def test_steps_are_timed_in_every_order() -> None:
    decisions = [scale.decision_for(StrategyName.DDP, count) for count in (1, 2)]
    assert [each.plan.gradient_accumulation_steps for each in decisions] == [1, 2]
    first, second = run_ranks(partial(scale.in_rank, decisions, 1), world_size=scale.RANKS, timeout_s=120)
    assert len(first) == len(second) == 2
    assert all(0 < seconds < 60 for seconds in (*first, *second))
