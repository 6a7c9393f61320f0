"""The benchmarks behind the README's figures, one after another; each alone is ``python -m benchmarks.NAME``.

Every part runs in a process of its own and counts as done where it has written its result file anew; a target that it
measures and misses is said in the report and does not end the suite. At the end the README's figures are written from
the result files (`benchmarks.figures`). On two idle cores it takes under half an hour.
Usage: ``python -m benchmarks.suite [NAME ...]`` or ``make bench``; writes ``benchmarks/results/suite.json`` and
``suite.md``. Exit code: 0 where every part is done, 1 where one failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks import figures
from benchmarks.environment import environment

RESULTS = Path(__file__).parent / "results"
TIMEOUT_S = 1200
"""Of one part; the longest takes ten minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One script."""

    name: str
    answers: str
    result: str
    """File in `RESULTS` that it writes."""


PARTS = (
    Part(name="published_memory", answers="peaks that others have measured on GPUs", result="published_memory.json"),
    Part(name="published_throughput", answers="their step times", result="published_throughput.json"),
    Part(name="analytic_references", answers="values that formulas must give", result="analytic_references.json"),
    Part(name="known_choices", answers="the planner on twenty known jobs", result="known_choices.json"),
    Part(name="peers", answers="our predictions beside those of other tools", result="peers.json"),
    Part(name="learned_records", answers="what own records teach, on runs held aside", result="learned_records.json"),
    Part(name="explain_configs", answers="verdicts on configuration files", result="explain_configs.csv"),
    Part(name="planning_time", answers="seconds of a plan", result="planning_time.json"),
    Part(name="largest_model", answers="the largest model under a budget", result="largest_model.json"),
    Part(name="step_time", answers="our loop beside others", result="step_time.json"),
)


class Outcome(StrEnum):
    """How a part ended."""

    DONE = "done"
    MISSED = "done, a target missed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A part that was run."""

    name: str
    answers: str
    outcome: Outcome
    seconds: int
    last_line: str
    """Of what it printed."""


def main(names: Sequence[str]) -> int:
    """Run the parts, all where none is named; report, and write the README's figures."""
    known = {part.name: part for part in PARTS}
    if unknown := [name for name in names if name not in known]:
        print(f"error: no benchmark {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    ran: list[Ran] = []
    chosen = [known[name] for name in names] or list(PARTS)
    for index, part in enumerate(chosen, start=1):
        print(f"{index} of {len(chosen)}: {part.name}, {part.answers}", flush=True)
        ran.append(run(part))
        why = f": {ran[-1].last_line}" if ran[-1].outcome is Outcome.FAILED else ""
        print(f"  {ran[-1].outcome} in {ran[-1].seconds} s{why}", flush=True)
    stored = {"environment": environment(), "parts": [asdict(each) for each in ran]}
    (RESULTS / "suite.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "suite.md").write_text(markdown(ran))
    failed = any(each.outcome is Outcome.FAILED for each in ran)
    if not failed:
        figures.write()
        print(figures.text())
    return int(failed)


def run(part: Part) -> Ran:
    """Run one part in a process of its own."""
    start, began = time.perf_counter(), time.time()
    words = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{part.name}"]
    try:
        process = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        printed, code = process.stdout + process.stderr * bool(process.returncode), process.returncode
    except subprocess.TimeoutExpired:
        printed, code = f"not done after {TIMEOUT_S} s", 1
    return Ran(
        name=part.name,
        answers=part.answers,
        outcome=outcome(code, wrote=_is_newer(RESULTS / part.result, began)),
        seconds=round(time.perf_counter() - start),
        last_line=next((line for line in reversed(printed.splitlines()) if line.strip()), ""),
    )


def outcome(code: int, *, wrote: bool) -> Outcome:
    """Return what an exit code means: scripts return 1 for a missed target, after their result is written."""
    if code not in (0, 1) or not wrote:
        return Outcome.FAILED
    return Outcome.MISSED if code else Outcome.DONE


def _is_newer(path: Path, moment: float) -> bool:
    return path.exists() and path.stat().st_mtime >= moment


def markdown(ran: Sequence[Ran]) -> str:
    """Return the report."""
    total = sum(each.seconds for each in ran)
    rows = [f"| {each.name} | {each.answers} | {each.outcome} | {each.seconds} |" for each in ran]
    return "\n".join(
        [
            f"# `make bench`: {len(ran)} parts in {total / 60:.1f} minutes",
            "",
            "| script | answers | outcome | seconds |",
            "|---|---|---|---|",
            *rows,
            "",
            "Figures in the README come from the files beside this one (`python -m benchmarks.figures`).",
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    sys.exit(main(parser.parse_args().names))
