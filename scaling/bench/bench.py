"""Runs what is missing of a bench, round by round, within its budget."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from scaling.bench.matrix import Planned
from scaling.bench.result import VERSION, CellResult, Environment, Outcome, Run
from scaling.bench.run import run_cell
from scaling.bench.store import RUNS_FOLDER, cell_path, read_cell, write_bench, write_cell
from strategies.decision import Decision
from strategies.units import format_bytes, format_seconds

RunCell = Callable[..., Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a bench may do."""

    repeats: int
    """Runs of a cell. All cells are run once before any is run again, so that what changes on the machine meanwhile
    meets all of them."""
    timeout_s: float
    """Of one run."""
    budget_s: float = math.inf
    """Of this call."""
    retries: bool = False
    """Whether cells are run again whose last run did not end well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a call has come to."""

    cells: tuple[CellResult, ...]
    num_left: int
    """Runs that the budget had no room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One run that is missing."""

    result: CellResult
    decision: Decision
    number: int
    """Of the run in its cell, from 1."""


@final
class Bencher:
    """Runs a bench in a folder, and goes on with one that is there."""

    def __init__(
        self,
        planned: Sequence[Planned],
        *,
        folder: Path,
        environment: Environment,
        limits: Limits,
        run: RunCell = run_cell,
    ) -> None:
        """Read what is there.

        Raises:
            ReportError: a file of it is broken.
        """
        self._folder, self._limits, self._run = folder, limits, run
        self._start = time.monotonic()
        self._walls: list[float] = []
        self._decisions = {each.cell.name: each.decision for each in planned}
        self._results = {each.cell.name: self._begun(each, environment) for each in planned}
        for result in self._results.values():
            self._walls += [one.wall_s for one in result.done]

    def finish(self) -> Finished:
        """Run what is missing; return everything that there is then.

        Raises:
            ScalingError: a file cannot be written.
        """
        tasks = self._missing()
        num_all, num_left = len(tasks), 0
        write_bench(self.cells, folder=self._folder)
        while tasks:
            task = tasks.pop(0)
            if self._expected_s(task) > self._left_s:
                num_left = len(tasks) + 1
                _say(f"the budget has no room for {_runs(num_left)}; the same command goes on with {_them(num_left)}")
                break
            _say(f"[{num_all - len(tasks)}/{num_all}] {task.result.cell.name}, {self._about(task, tasks)}")
            run = self._run_once(task)
            if run is None:
                num_left = len(tasks) + 1
                _say(f"the budget ended the run; it does not count, and {_runs(num_left)} are left")
                break
            self._keep(task, run)
            if run.outcome is not Outcome.DONE:  # it would not end otherwise the next time
                tasks = [each for each in tasks if each.result.cell.name != task.result.cell.name]
        return Finished(cells=self.cells, num_left=num_left)

    @property
    def cells(self) -> tuple[CellResult, ...]:
        return tuple(self._results.values())

    def _begun(self, planned: Planned, environment: Environment) -> CellResult:
        """Return what is stored of a cell, or a new one; its prediction is in its file before anything runs."""
        stored = read_cell(cell_path(self._folder, planned.cell.name))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        new = CellResult(version=VERSION, cell=planned.cell, environment=environment, predicted_at=now)
        result = stored or new
        if planned.refused:
            if not result.done:
                refused = Run(outcome=Outcome.REFUSED, reason=planned.refused, started_at=now)
                result = replace(new, runs=(refused,))
        elif self._is_to_be_tried_again(result):
            result = replace(result, runs=result.done)
        if result != stored:
            write_cell(result, folder=self._folder)
        return result

    def _is_to_be_tried_again(self, result: CellResult) -> bool:
        """Whether the last run does not stand: it was refused and is not any more, or the user asks for it."""
        last = result.runs[-1].outcome if result.runs else Outcome.DONE
        return last is Outcome.REFUSED or (self._limits.retries and last is not Outcome.DONE)

    def _missing(self) -> list[_Task]:
        """Return the runs that are not there, round by round."""
        return [
            _Task(result=result, decision=decision, number=number)
            for number in range(1, self._limits.repeats + 1)
            for result in self._results.values()
            if (decision := self._decisions[result.cell.name]) is not None
            and all(run.outcome is Outcome.DONE for run in result.runs)
            and len(result.runs) < number
        ]

    def _expected_s(self, task: _Task) -> float:
        """Return how long a run will take: as its cell's did, else as the slowest known one; 0 for the first."""
        own = [run.wall_s for run in self._results[task.result.cell.name].done]
        return statistics.median(own) if own else max(self._walls, default=0.0)

    @property
    def _left_s(self) -> float:
        return self._limits.budget_s - (time.monotonic() - self._start)

    def _about(self, task: _Task, rest: Sequence[_Task]) -> str:
        """Return which run it is, what is predicted, and how long everything will take."""
        estimate = task.decision.estimate
        seconds = sum(map(self._expected_s, [task, *rest]))
        eta = f"about {format_seconds(round(seconds), digits=3)} left for all" if seconds else "time left not known yet"
        run = f"run {task.number} of {self._limits.repeats}" if self._limits.repeats > 1 else "1 run"
        return f"{run}: predicted peak {format_bytes(estimate.peak_allocated_bytes)}; {eta}"

    def _run_once(self, task: _Task) -> Run | None:
        """Return one run; None where the budget has ended it, and not the cell's own limit."""
        left_s = self._left_s
        folder = self._folder / RUNS_FOLDER / task.result.cell.name / str(task.number)
        cell = self._results[task.result.cell.name].cell
        timeout_s = min(self._limits.timeout_s, left_s)
        run = self._run(cell, task.decision, folder=folder, timeout_s=timeout_s)
        is_cut = run.outcome is Outcome.TIMED_OUT and left_s < self._limits.timeout_s
        return None if is_cut else run

    def _keep(self, task: _Task, run: Run) -> None:
        before = self._results[task.result.cell.name]
        result = replace(before, runs=(*before.runs, run))
        self._results[result.cell.name] = result
        self._walls.append(run.wall_s)
        write_cell(result, folder=self._folder)
        write_bench(self.cells, folder=self._folder)
        _say(f"    {_told(result, run)}")


def _told(result: CellResult, run: Run) -> str:
    if run.outcome is not Outcome.DONE:
        return f"{run.outcome}: {run.reason}"
    peak = "" if run.peak_allocated_bytes is None else f", measured peak {format_bytes(run.peak_allocated_bytes)}"
    rate = result.cell.tokens_per_step / run.median_step_s
    step = format_seconds(run.median_step_s, digits=3)
    return f"step {step} (median of {len(run.step_times_s)}), {rate:,.0f} tokens/s{peak}; {run.wall_s:.0f} s in all"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
