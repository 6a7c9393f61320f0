"""The benchmark of step times: what it makes of the seconds, and that every loop it names runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from benchmarks import step_time
from scaling.local_ranks import run_ranks
from strategies.plan import StrategyName


def test_the_ratio_is_the_median_of_neighbours_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine that is ten times slower in the third turn is so for both.
    pairs = [(9.0, 1.0)] * step_time.WARM_UP + [(1.0, 2.0), (1.2, 2.0), (12.0, 20.0), (1.6, 2.0), (1.8, 2.0)]
    monkeypatch.setattr(step_time, "run_ranks", lambda *_, **__: ([*pairs], [*pairs]))
    row = step_time.timed(StrategyName.DDP, "hand-written", model="tiny-llama")
    assert row.ratio == pytest.approx(0.6)
    assert row.turns == 5
    assert row.limit == 1.01


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("other", ["hand-written", "Trainer"])
def test_loops_take_turns(other: Any) -> None:
    decision = step_time.plan("tiny-llama", StrategyName.DDP)
    first, second = run_ranks(
        partial(step_time.take_turns, decision, other, 3), world_size=step_time.RANKS, timeout_s=120
    )
    assert len(first) == len(second) == 3
    assert all(seconds > 0 for pair in (*first, *second) for seconds in pair)
