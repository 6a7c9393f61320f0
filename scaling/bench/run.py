"""One run of a cell: a fresh group of processes that trains for real, and what it left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scaling.bench.environment import rank_environ
from scaling.bench.launch import command_of
from scaling.bench.result import Cell, Outcome, Run
from scaling.errors import LaunchError, one_line
from scaling.run_folder import FINAL_FOLDER, METRICS_FILE, SUMMARY_FILE
from scaling.watched_process import Watched, last_words, watch
from strategies.decision import Decision
from strategies.detect import oom_kills
from strategies.emit.files import write_plan
from strategies.errors import ScalingError
from strategies.estimate import MemoryProfile
from strategies.serialize import from_json

LOG_FILE = "log.txt"
PLAN_FOLDER, RUN_FOLDER = "plan", "run"
_OUT_OF_MEMORY = re.compile(r"out of (device |host )?memory|OutOfMemoryError|can't allocate memory", re.IGNORECASE)
_ERROR = re.compile(r"^(?:\[\w+\]: *)?error(?: on rank \d+)?: (.*)$", re.MULTILINE)
"""How our trainer says what ends it (`scaling.ranks.report_error`)."""
_EXCEPTION = re.compile(r"^(?:\[\w+\]: *)?(\w[\w.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)
_STEPPED_DOWN = re.compile(r"rank \d+ ran out of device memory.*?micro_batch_size=\d+ instead of \d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What was known when the processes were started."""

    run: Run
    kernel_kills: int


def run_cell(cell: Cell, decision: Decision, *, folder: Path, timeout_s: float) -> Run:
    """Return what came of running a cell once; its plan, log and metrics are left in ``folder``.

    Out of memory, a failure and a run that takes longer than ``timeout_s`` are results.

    Raises:
        ScalingError: the folder cannot be written.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was broken off
    plan, out, log = folder / PLAN_FOLDER, folder / RUN_FOLDER, folder / LOG_FILE
    write_plan(decision, folder=plan)
    started = Started(run=_begun(), kernel_kills=oom_kills() or 0)
    try:
        command = command_of(cell, decision, plan=plan, out=out)
    except LaunchError as error:
        return replace(started.run, outcome=Outcome.REFUSED, reason=str(error))
    watched = watch(command, out=out, log=log, environ=rank_environ(decision.cluster), timeout_s=timeout_s)
    shutil.rmtree(out / FINAL_FOLDER, ignore_errors=True)  # the model that came of a few steps
    return _result(cell, started, watched, out=out, log=log, timeout_s=timeout_s)


def _begun() -> Run:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Run(outcome=Outcome.FAILED, started_at=now, load_before=round(os.getloadavg()[0], 2))


def _result(cell: Cell, started: Started, watched: Watched, *, out: Path, log: Path, timeout_s: float) -> Run:
    run = replace(started.run, wall_s=watched.end_s - watched.start_s)
    text = log.read_text(errors="replace")
    if stepped_down := _STEPPED_DOWN.search(text):
        return replace(run, outcome=Outcome.OUT_OF_MEMORY, reason=one_line(RuntimeError(stepped_down[0])))
    if watched.timed_out:
        reason = f"ended after {timeout_s:.0f} s, {_steps_done(out)} of {_num_steps(cell)} steps done"
        return replace(run, outcome=Outcome.TIMED_OUT, reason=reason)
    try:
        if watched.returncode == 0:
            return _measured(run, cell, watched, out=out)
    except (OSError, ValueError, KeyError, TypeError, ScalingError) as error:
        return replace(run, reason=f"its results cannot be read: {type(error).__name__}: {one_line(error)}")
    if (oom_kills() or 0) > started.kernel_kills:
        reason = "the kernel ended a process for lack of memory"
        return replace(run, outcome=Outcome.OUT_OF_MEMORY, reason=reason)
    outcome = Outcome.OUT_OF_MEMORY if _OUT_OF_MEMORY.search(text) else Outcome.FAILED
    return replace(run, outcome=outcome, reason=reason_in(text) or f"exit code {watched.returncode}: {_tail(log)}")


def _measured(run: Run, cell: Cell, watched: Watched, *, out: Path) -> Run:
    """Return what the run's own files say.

    Raises:
        OSError, ValueError, KeyError, TypeError, ScalingError: they are not there, or not as our trainer writes them.
    """
    summary: Mapping[str, Any] = json.loads((out / SUMMARY_FILE).read_text())
    lines = [json.loads(line) for line in (out / METRICS_FILE).read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    if len(steps) != _num_steps(cell):
        raise ValueError(f"{len(steps)} steps in {METRICS_FILE}, not {_num_steps(cell)}")
    is_plain = len(lines) == len(steps)  # no line of an evaluation among those that were counted
    measured = summary["measured"]
    profile = None if measured is None else from_json(MemoryProfile, json.dumps(measured), source=str(out))
    return replace(
        run,
        outcome=Outcome.DONE,
        step_times_s=tuple(float(line["step_time_s"]) for line in steps[cell.warm_up_steps :]),
        cpu_s_per_step=_cpu_s_per_step(cell, watched) if is_plain else None,
        peak_allocated_bytes=summary["measured_peak_bytes"],
        peak_reserved_bytes=summary["measured_peak_reserved_bytes"],
        peak_resident_bytes=max(watched.peaks.values(), default=None),
        measured=profile,
    )


def _cpu_s_per_step(cell: Cell, watched: Watched) -> float | None:
    return cpu_s_per_step(watched.cpu_s, first=cell.warm_up_steps, last=_num_steps(cell))


def cpu_s_per_step(seen: Mapping[int, float], *, first: int, last: int) -> float | None:
    """Return processor seconds a step from step ``first`` on; ``seen``: those used when so many steps were first seen.

    None where too little was seen.

    >>> cpu_s_per_step({0: 3.0, 4: 10.0, 5: 11.0, 8: 14.5}, first=4, last=8)
    1.125
    """
    within = [number for number in seen if first <= number <= last and seen[number]]
    if len(within) < 2:
        return None
    begin, end = min(within), max(within)
    return (seen[end] - seen[begin]) / (end - begin)


def reason_in(text: str) -> str:
    """Return why a run ended, in one line, from what it has printed; empty where it does not say.

    Our trainer's own word comes before an exception, the first one of several.
    """
    for pattern in (_ERROR, _EXCEPTION):
        found = [match[1] for match in pattern.finditer(text) if "ChildFailedError" not in match[1]]
        if found:
            return one_line(RuntimeError(found[0]))
    return ""


def _tail(log: Path) -> str:
    lines = last_words(log).splitlines()
    return one_line(RuntimeError(lines[-1])) if lines else "nothing was printed"


def _num_steps(cell: Cell) -> int:
    return cell.warm_up_steps + cell.timed_steps


def _steps_done(out: Path) -> int:
    try:
        return (out / METRICS_FILE).read_bytes().count(b"\n")
    except OSError:
        return 0
