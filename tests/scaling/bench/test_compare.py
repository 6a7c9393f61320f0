"""Verdicts that follow from arithmetic, on results made by hand."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.bench.compare import BenchComparison, Measure, Verdict, compare_benches, runs_needed
from scaling.bench.compare_table import lines
from scaling.bench.rank_test import critical_value, shift
from scaling.bench.result import VERSION, Bench, Outcome
from scaling.bench.store import write_bench
from strategies.plan import StrategyName
from tests.scaling.bench.results import ENVIRONMENT, RUNNING, axes, bench, done, ended, planned, result
from tests.scaling.launching import run_cli

NOISE = (0.99, 1.0, 1.01, 1.02, 0.98)
"""Of five runs of one and the same cell."""


def runs(*, times: float = 1.0, more_bytes: int = 0, cpu_s: float | None = None) -> Bench:
    return bench(
        *(done(times * noise, peak_bytes=100_000_000 + more_bytes, cpu_s=cpu_s and cpu_s * noise) for noise in NOISE)
    )


def verdicts(comparison: BenchComparison) -> dict[Measure, Verdict]:
    return {each.measure: each.verdict for each in comparison.findings}


# Mann and Whitney's table, as statistics books reprint it: one-sided at 0.005, 0.01 and 0.05.
@pytest.mark.parametrize(
    ("level", "criticals"),
    [
        (0.005, {4: -1, 5: 0, 6: 2, 7: 4, 8: 7, 10: 16}),
        (0.01, {4: -1, 5: 1, 6: 3, 7: 6, 8: 9, 10: 19}),
        (0.05, {3: 0, 5: 4, 6: 7, 8: 15}),
    ],
)
def test_critical_value_matches_published_tables(level: float, criticals: dict[int, int]) -> None:
    assert {size: critical_value(size, size, level=level) for size in criticals} == criticals


def test_probability_matches_counting_by_hand() -> None:
    # Of the 10 orders of two and three values one has both of the second sample last, one has them last but for one.
    assert shift([1, 2, 3], [4, 5], level=0.1).p_larger == pytest.approx(1 / 10)
    assert shift([1, 2, 4], [3, 5], level=0.1).p_larger == pytest.approx(2 / 10)
    assert shift([4, 5, 6], [1, 2], level=0.1).p_smaller == pytest.approx(1 / 10)


def test_shift_is_the_median_ratio_with_the_interval_of_the_test() -> None:
    found = shift([1.0, 2.0, 4.0], [2.0, 4.0, 8.0], level=0.05)
    # Ratios 0.5, 1, 1, 2, 2, 2, 4, 4, 8; the critical value of 3 and 3 at 0.05 is 0, so the ends are the extremes.
    assert (found.ratio, found.low, found.high) == (2.0, 0.5, 8.0)


def test_identical_runs_are_no_regression() -> None:
    assert set(verdicts(compare_benches(runs(cpu_s=2.0), runs(cpu_s=2.0))).values()) == {Verdict.SAME}


def test_same_runs_in_another_order_are_no_regression() -> None:
    after = bench(*(done(noise) for noise in reversed(NOISE)))
    assert set(verdicts(compare_benches(runs(), after)).values()) == {Verdict.SAME}


def test_five_percent_slower_is_a_regression_of_time_alone() -> None:
    comparison = compare_benches(runs(), runs(times=1.05))
    assert verdicts(comparison) == {Measure.STEP_TIME: Verdict.REGRESSION, Measure.PEAK_MEMORY: Verdict.SAME}
    [finding] = comparison.regressions
    assert finding.change == pytest.approx(0.05, abs=0.001)
    assert finding.low is not None
    assert 0 < finding.low < 0.05


def test_five_percent_faster_is_an_improvement() -> None:
    assert verdicts(compare_benches(runs(times=1.05), runs()))[Measure.STEP_TIME] is Verdict.IMPROVEMENT


def test_one_percent_slower_is_too_small_to_tell_even_without_noise() -> None:
    before, after = bench(*[done(1.0)] * 9), bench(*[done(1.01)] * 9)
    assert verdicts(compare_benches(before, after))[Measure.STEP_TIME] is Verdict.SAME


def test_slower_runs_within_noise_are_no_regression() -> None:
    wide = bench(*(done(seconds) for seconds in (0.8, 0.9, 1.0, 1.1, 1.2)))
    after = bench(*(done(1.05 * seconds) for seconds in (0.8, 0.9, 1.0, 1.1, 1.2)))
    assert verdicts(compare_benches(wide, after))[Measure.STEP_TIME] is Verdict.SAME


def test_processor_time_tells_what_noise_hides_in_the_clock() -> None:
    loud, quiet = (0.8, 0.9, 1.0, 1.1, 1.2), (1.0, 1.001, 1.002, 1.003, 1.004)
    before = bench(*(done(clock, cpu_s=cpu) for clock, cpu in zip(loud, quiet, strict=True)))
    after = bench(*(done(1.05 * clock, cpu_s=1.05 * cpu) for clock, cpu in zip(loud, quiet, strict=True)))
    found = verdicts(compare_benches(before, after))
    assert found[Measure.STEP_TIME] is Verdict.SAME
    assert found[Measure.CPU_TIME] is Verdict.REGRESSION


@pytest.mark.parametrize(
    ("more", "verdict"), [(2_000_000, Verdict.REGRESSION), (-2_000_000, Verdict.IMPROVEMENT), (50_000, Verdict.SAME)]
)
def test_two_percent_more_memory_is_a_regression_by_one_run(more: int, verdict: Verdict) -> None:
    before, after = bench(done()), bench(done(peak_bytes=100_000_000 + more))
    assert verdicts(compare_benches(before, after))[Measure.PEAK_MEMORY] is verdict


def test_a_peak_that_is_lifted_by_chance_in_some_runs_is_no_regression() -> None:
    lifted = bench(done(peak_bytes=103_000_000), done(), done(peak_bytes=104_000_000))
    assert verdicts(compare_benches(runs(), lifted))[Measure.PEAK_MEMORY] is Verdict.SAME


@pytest.mark.parametrize(("num_runs", "verdict"), [(1, Verdict.TOO_FEW_RUNS), (5, Verdict.REGRESSION)])
def test_peaks_that_chance_may_lift_need_as_many_runs_as_times(num_runs: int, verdict: Verdict) -> None:
    [cell] = planned(axes(strategies=(StrategyName.FSDP2,)))
    before, after = (
        Bench(version=VERSION, cells=(result(cell, *[done(peak_bytes=num_bytes)] * num_runs),))
        for num_bytes in (100_000_000, 105_000_000)
    )
    assert verdicts(compare_benches(before, after))[Measure.PEAK_MEMORY] is verdict


def test_few_runs_are_told_and_judged_for_large_changes_only() -> None:
    slower, doubled = (compare_benches(bench(done(1.0)), bench(done(times))) for times in (1.05, 3.0))
    assert verdicts(slower)[Measure.STEP_TIME] is Verdict.TOO_FEW_RUNS
    assert "give both --repeats 5" in slower.findings[0].note
    assert lines(slower)[0] == "no regression; 1 cell in both, 1 of them with too few runs to judge all"
    # Three steps against three: even 3 times the time reaches a probability of 1/20 only, which is not below 0.005.
    assert verdicts(doubled)[Measure.STEP_TIME] is Verdict.TOO_FEW_RUNS
    many = [bench(replace(done(), step_times_s=tuple(times * (1 + i / 100) for i in range(6)))) for times in (1.0, 3.0)]
    assert verdicts(compare_benches(*many))[Measure.STEP_TIME] is Verdict.REGRESSION


def test_thousands_of_steps_are_judged_at_once() -> None:
    steps = [1.0 + i % 7 / 100 for i in range(5000)]
    long, slower = (bench(replace(done(), step_times_s=tuple(times * each for each in steps))) for times in (1.0, 3.0))
    start = time.monotonic()
    assert verdicts(compare_benches(long, slower))[Measure.STEP_TIME] is Verdict.REGRESSION
    assert verdicts(compare_benches(long, long))[Measure.STEP_TIME] is Verdict.TOO_FEW_RUNS
    assert time.monotonic() - start < 20


def test_runs_needed_are_those_that_the_table_asks_for() -> None:
    assert [runs_needed(have) for have in (1, 4, 5, 9)] == [5, 5, 5, 9]


def test_a_cell_that_does_not_run_any_more_is_a_regression() -> None:
    out_of_memory = bench(ended(Outcome.OUT_OF_MEMORY, "rank 1 ran out of device memory"))
    comparison = compare_benches(runs(), out_of_memory)
    assert verdicts(comparison) == {Measure.OUTCOME: Verdict.REGRESSION}
    assert "done -> out of memory: rank 1 ran out of device memory" in lines(comparison)[-1]
    assert verdicts(compare_benches(out_of_memory, runs())) == {Measure.OUTCOME: Verdict.IMPROVEMENT}
    assert verdicts(compare_benches(out_of_memory, out_of_memory)) == {Measure.OUTCOME: Verdict.SAME}


def test_cells_of_one_side_and_other_environments_are_said() -> None:
    ddp, zero2 = planned(axes(strategies=(StrategyName.DDP, StrategyName.ZERO2)))
    newer = replace(ENVIRONMENT, versions={"torch": "2.14.0"}, omp_num_threads="2")
    before = Bench(version=VERSION, cells=(result(ddp, done()), result(zero2, done())))
    after = Bench(version=VERSION, cells=(result(ddp, replace(done(), load_before=3.0), environment=newer),))
    printed = "\n".join(lines(compare_benches(before, after)))
    assert "only in the first: zero2" in printed
    assert "torch: 2.13.0 -> 2.14.0" in printed
    assert "OMP_NUM_THREADS: 1 -> 2" in printed
    assert "load of the machine before runs (median): 0.0 -> 3.0" in printed


def test_a_busy_machine_is_said() -> None:
    busy = bench(replace(done(), load_before=9.0))
    assert "the machine was busy in both (load 9.0 and 9.0 on 2 cores)" in "\n".join(lines(compare_benches(busy, busy)))


def test_no_cell_in_both_is_said() -> None:
    [ddp] = planned()
    [fsdp2] = planned(axes(strategies=(StrategyName.FSDP2,)))
    benches = [Bench(version=VERSION, cells=(result(each, done()),)) for each in (ddp, fsdp2)]
    assert lines(compare_benches(*benches))[0] == "nothing to compare: no cell is in both"


def test_cells_of_other_settings_are_told_apart_by_them() -> None:
    benches = [
        Bench(version=VERSION, cells=(result(cell, done()),))
        for settings in ((), ("seed=2",))
        for cell in planned(running=replace(RUNNING, settings=settings))
    ]
    assert lines(compare_benches(*benches))[1:] == [
        "only in the first: ddp, settings none",
        "only in the second: ddp, settings seed=2",
    ]


def test_exit_codes_tell_a_regression_from_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {name: tmp_path / name for name in ("before", "same", "slower", "broken")}
    for name, content in (("before", runs()), ("same", runs()), ("slower", runs(times=1.05))):
        write_bench(content.cells, folder=folders[name])
    assert run_cli(monkeypatch, ["bench", "compare", str(folders["before"]), str(folders["same"])]) == 0
    assert "no regression; 1 cell in both" in capsys.readouterr().out
    assert run_cli(monkeypatch, ["bench", "compare", str(folders["before"]), str(folders["slower"]), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each["verdict"] for each in findings] == ["regression", "same"]
    folders["broken"].mkdir()
    file = folders["broken"] / "bench.json"
    for text, message in (
        ('{"version": 1, "cells": [', "is not a valid result of a bench: it is not JSON"),
        ('{"version": 7, "cells": []}', "has version=7, and this memory-scaling reads version=1"),
        ('{"version": 1}', "cells is missing"),
    ):
        file.write_text(text)
        assert run_cli(monkeypatch, ["bench", "compare", str(folders["before"]), str(folders["broken"])]) == 2
        told = capsys.readouterr().err
        assert message in told
        assert str(file) in told
        assert told.count("\n") == 1
    assert run_cli(monkeypatch, ["bench", "compare", str(tmp_path), str(folders["same"])]) == 2
    assert "holds no bench.json" in capsys.readouterr().err
    write_bench([], folder=tmp_path / "empty")
    assert run_cli(monkeypatch, ["bench", "compare", str(folders["before"]), str(tmp_path / "empty")]) == 2
    printed = capsys.readouterr()
    assert "only in the first: ddp" in printed.out
    assert printed.err.startswith("error: no cell is in both ")
