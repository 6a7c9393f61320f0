"""What is run, in which order, and what is not run again; the runs themselves are made up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from scaling.bench.bench import Bencher, Finished, Limits
from scaling.bench.matrix import Planned
from scaling.bench.result import Cell, Outcome, Run
from scaling.bench.store import cell_path, read_bench, read_cell, write_bench, write_cell
from scaling.errors import ReportError
from strategies.estimate import MemoryProfile
from strategies.plan import StrategyName
from tests.scaling.bench.results import ENVIRONMENT, RUNNING, axes, done, ended, planned, result

TWO = axes(strategies=(StrategyName.DDP, StrategyName.FSDP2))
ONCE = Limits(repeats=1, timeout_s=100.0)


@dataclass(slots=True)
class Runner:
    """Stands in for `run_cell`: takes note of what is run, and of what is stored by then."""

    folder: Path
    outcomes: dict[StrategyName, Run] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    predicted: list[int | None] = field(default_factory=list)
    timeouts_s: list[float] = field(default_factory=list)

    def __call__(self, cell: Cell, decision: Any, *, folder: Path, timeout_s: float) -> Run:
        stored = read_cell(cell_path(self.folder, cell.name))
        self.predicted.append(stored.predicted_peak_bytes if stored and len(stored.runs) < 9 else None)
        self.ran.append(f"{cell.choice.strategy} {folder.name}")
        self.timeouts_s.append(timeout_s)
        return self.outcomes.get(cell.choice.strategy, done())


def finish(cells: list[Planned], runner: Runner, limits: Limits = ONCE) -> Finished:
    bencher = Bencher(cells, folder=runner.folder, environment=ENVIRONMENT, limits=limits, run=runner)
    return bencher.finish()


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(folder=tmp_path / "bench")


def test_rounds_go_over_all_cells_and_predictions_are_stored_before(runner: Runner) -> None:
    cells = planned(TWO)
    finished = finish(cells, runner, replace(ONCE, repeats=2))
    assert runner.ran == ["ddp 1", "fsdp2 1", "ddp 2", "fsdp2 2"]
    predicted = [each.decision.estimate.peak_allocated_bytes for each in cells if each.decision]
    assert runner.predicted == predicted * 2
    assert read_bench(runner.folder).cells == finished.cells


def test_the_same_bench_again_runs_nothing_and_more_repeats_only_those(runner: Runner) -> None:
    first = finish(planned(TWO), runner)
    again = Runner(folder=runner.folder)
    assert finish(planned(TWO), again).cells == first.cells
    assert again.ran == []
    finish(planned(TWO), again, replace(ONCE, repeats=2))
    assert again.ran == ["ddp 2", "fsdp2 2"]


@pytest.mark.parametrize(
    "other",
    [
        replace(RUNNING, timed_steps=4),
        replace(RUNNING, settings=("seed=1",)),
        replace(RUNNING, environment=replace(ENVIRONMENT, versions={"torch": "2.14.0"})),
    ],
    ids=["steps", "settings", "versions"],
)
def test_other_steps_settings_or_versions_are_other_cells(runner: Runner, other: Any) -> None:
    finish(planned(), runner)
    again = Runner(folder=runner.folder)
    finish(planned(running=other), again)
    assert again.ran == ["ddp 1"]


def test_a_cell_that_failed_is_a_result_and_runs_again_only_when_asked(
    runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.outcomes[StrategyName.DDP] = ended(Outcome.OUT_OF_MEMORY, "rank 0 ran out of device memory")
    finished = finish(planned(TWO), runner, replace(ONCE, repeats=2))
    assert runner.ran == ["ddp 1", "fsdp2 1", "fsdp2 2"]
    assert [each.outcome for each in finished.cells] == [Outcome.OUT_OF_MEMORY, Outcome.DONE]
    assert "out of memory: rank 0 ran out of device memory" in capsys.readouterr().err
    again = Runner(folder=runner.folder)
    finish(planned(TWO), again, replace(ONCE, repeats=2))
    assert again.ran == []
    assert finish(planned(TWO), again, replace(ONCE, repeats=2, retries=True)).cells[0].outcome is Outcome.DONE
    assert again.ran == ["ddp 1", "ddp 2"]


def test_what_is_refused_is_a_result_until_it_is_possible(runner: Runner) -> None:
    [cell] = planned()
    refused = finish([replace(cell, refused="does not fit")], runner)
    assert runner.ran == []
    assert (refused.cells[0].outcome, refused.cells[0].reason) == (Outcome.REFUSED, "does not fit")
    assert finish([cell], runner).cells[0].outcome is Outcome.DONE
    # What was measured stays, also where it would not be run again.
    assert finish([replace(cell, refused="does not fit")], runner).cells[0].outcome is Outcome.DONE


def test_the_budget_ends_before_a_run_that_would_not_end_in_time(
    runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each run says that it took 20 s: after the first, the rest of 10 s has no room for another.
    finished = finish(planned(TWO), runner, replace(ONCE, budget_s=10.0))
    assert runner.ran == ["ddp 1"]
    assert finished.num_left == 1
    assert "no room for 1 run; the same command goes on with it" in capsys.readouterr().err
    assert runner.timeouts_s[0] <= 10.0
    assert finish(planned(TWO), runner).num_left == 0
    assert runner.ran == ["ddp 1", "fsdp2 1"]


def test_a_run_that_the_budget_cuts_off_does_not_count(runner: Runner) -> None:
    runner.outcomes[StrategyName.DDP] = ended(Outcome.TIMED_OUT, "ended after 10 s")
    finished = finish(planned(TWO), runner, replace(ONCE, budget_s=10.0))
    assert finished.num_left == 2
    assert [each.runs for each in finished.cells] == [(), ()]
    # With time enough for the cell's own limit it is a result.
    assert finish(planned(TWO), runner).cells[0].outcome is Outcome.TIMED_OUT


def test_time_left_is_told_from_the_runs_so_far(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    finish(planned(TWO), runner, replace(ONCE, repeats=2))
    begun = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    ends = ["time left not known yet", "about 60 s left for all", "about 40 s left for all", "about 20 s left for all"]
    assert [line.rpartition("; ")[2] for line in begun] == ends


def test_a_broken_file_of_a_cell_is_one_error_that_names_it(runner: Runner) -> None:
    finish(planned(), runner)
    path = cell_path(runner.folder, planned()[0].cell.name)
    path.write_text(path.read_text().replace('"outcome": "done"', '"outcome": "dunno"'))
    with pytest.raises(
        Exception, match=r"runs\.0\.outcome=\"dunno\" must be .*remove it: the cell is run again"
    ) as told:
        finish(planned(), runner)
    assert str(path) in str(told.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"step_times_s": ()}, r"runs\[0\].outcome=done with step_times_s=\[\]"),
        ({"step_times_s": (0.0, 0.0)}, r"with step_times_s=\[0.0, 0.0\]"),
        ({"step_times_s": (math.nan,)}, r"runs\[0\].step_times_s\[0\]=nan"),
        ({"cpu_s_per_step": math.inf}, r"runs\[0\].cpu_s_per_step=inf"),
        ({"peak_allocated_bytes": 10**400}, r"runs\[0\].peak_allocated_bytes=1000000000... \(401 digits\)"),
        ({"peak_allocated_bytes": -1}, r"runs\[0\].peak_allocated_bytes=-1"),
        ({"measured": MemoryProfile(phases=())}, "a memory profile without phases"),
    ],
)
def test_numbers_that_no_run_has_are_one_error(runner: Runner, given: dict[str, Any], told: str) -> None:
    edited = result(planned()[0], replace(done(), **given))
    write_cell(edited, folder=runner.folder)
    write_bench([edited], folder=runner.folder)
    with pytest.raises(ReportError, match=f"bench.json has .*{told} in the cell ddp-.*remove it"):
        read_bench(runner.folder)
    with pytest.raises(ReportError, match=f"{told} in the cell .*remove it: the cell is run again"):
        finish(planned(), runner)


def test_a_file_of_another_cell_is_refused(runner: Runner) -> None:
    finish(planned(TWO), runner)
    ddp, fsdp2 = (cell_path(runner.folder, each.cell.name) for each in planned(TWO))
    ddp.write_bytes(fsdp2.read_bytes())
    with pytest.raises(ReportError, match=f"{ddp} holds the cell {fsdp2.stem}, not .*remove it: the cell is run again"):
        finish(planned(TWO), runner)


def test_a_folder_without_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"holds no bench\.json; give the --out folder of a bench"):
        read_bench(tmp_path)
