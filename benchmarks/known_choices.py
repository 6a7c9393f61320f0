"""What the planner chooses for well-known jobs, beside what their sources ran.

Method: twenty published runs (`published_runs`), picked for variety of source, model, GPU and number of GPUs. The
planner is given the job as the source ran it (model, GPUs, length, global batch, precision, optimizer, attention, loss)
and everything else is open, once at the default safety and once by the point estimate. Both plans are timed by the same
model. A choice must not be what the same source reports to have run out of memory for that model on as many GPUs
(`reference/measured.csv`). Beside that, every job that a user reports to have run out of memory
(`reference/user_cases.csv`) is planned; those reports leave much unsaid, which is assumed in favour of fitting.

Usage: ``python -m benchmarks.known_choices``; writes ``benchmarks/results/known_choices.json`` and ``.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import published_cases, user_cases
from benchmarks.environment import environment
from benchmarks.published_cases import LeftOut, Row, published_rows
from benchmarks.published_runs import Run, runs_of
from strategies.cases.case import Case, read_case
from strategies.decision import Decision
from strategies.errors import NoPlanFitsError, ScalingError
from strategies.explain import describe_plan
from strategies.learning.step_correction import known_step_time
from strategies.memory.predict import predict
from strategies.plan import Plan
from strategies.planner.ranking import TIE
from strategies.planner.safety import DEFAULT_SAFETY, shortage
from strategies.select import decide

RESULTS = Path(__file__).parent / "results"
JOBS = (
    "LF-001", "LF-025", "LF-061", "LF-085", "LF-109", "LF-133", "LF-157", "LF-181", "LF-205",
    "TTC-001", "TTC-004", "TTC-026", "BSZ3-025", "BSZ3-026", "TUNE-005", "AUTO-012", "KEMP-003", "MISC-001",
    "SWIFT-001", "MIST-001",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One job: what its source ran and what is chosen at one safety."""

    id: str
    job: str
    safety: float
    source_plan: str
    source_fits: bool
    """By our estimate, at this safety."""
    chosen_plan: str
    time_over_source: float | None
    """Predicted seconds of the chosen plan over those of the source's; None where none fits."""
    reported_out_of_memory: tuple[str, ...]
    """Rows of the same source, model and number of GPUs that ran out of memory with the chosen strategy and offload."""

    @property
    def verdict(self) -> str:
        """Return the outcome in a word or two."""
        if self.time_over_source is None:
            return "none fits"
        if self.chosen_plan == self.source_plan:
            return "same"
        if self.time_over_source <= 1 + TIE:
            return "faster" if self.time_over_source < 1 - TIE else "as fast"
        return "as fast" if self.source_fits else "slower, surer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """One job that is reported to have run out of memory."""

    id: str
    failed_plan: str
    chosen_plan: str
    is_chosen_again: bool
    """Whether the choice is the plan that failed, or the same with a larger micro batch."""


def choice(run: Run, *, safety: float) -> Choice:
    """Return what is chosen for the job of a published run."""
    case, plan = run.case, run.case.plan
    assert plan is not None
    estimate = predict(case.spec, cluster=case.cluster, job=case.job, plan=plan)
    decision = _decided(case, safety=safety)
    time = known_step_time(case.spec, cluster=case.cluster, job=case.job, plan=plan)
    assert time is not None
    return Choice(
        id=run.row["id"],
        job=f"{run.row['model']}, {case.cluster.gpus} x {case.cluster.gpu.name}, {case.job.seq_len} tokens",
        safety=safety,
        source_plan=describe_plan(plan),
        source_fits=shortage(estimate, cluster=case.cluster, safety=safety) is None,
        chosen_plan="" if decision is None else describe_plan(decision.plan),
        time_over_source=None
        if decision is None or decision.time is None
        else round(decision.time.total_s / time.total_s, 4),
        reported_out_of_memory=() if decision is None else tuple(_reported(run, decision.plan)),
    )


def _reported(run: Run, plan: Plan) -> Iterator[str]:
    """Yield the rows that ran out of memory with a plan of this kind and no larger micro batch."""
    for row in published_rows():
        names = ("model", "n_gpus", "gpu")
        if (
            row["outcome"] != "oom"
            or any(row[name] != run.row[name] for name in names)
            or _source(row) != _source(run.row)
        ):
            continue
        named = next(kind for pattern, kind in published_cases.STRATEGIES if re.search(pattern, row["strategy"]))
        is_kind = all(str(getattr(plan, name, None)) == str(value) for name, value in named.items())
        if is_kind and plan.micro_batch_size >= int(row["micro_batch"] or 1):
            yield row["id"]


def _source(row: Row) -> str:
    return row["id"].split("-")[0]


def failures() -> Iterator[Failed]:
    """Yield every job that a user reports to have run out of memory and that can be planned."""
    for row in user_cases.user_rows():
        if row["outcome"] != "oom":
            continue
        try:
            case = read_case(json.dumps(user_cases.case_of(row)), number=1)
            decision = _decided(case, safety=DEFAULT_SAFETY)
        except (LeftOut, ScalingError):
            continue
        assert case.plan is not None
        yield Failed(
            id=row["id"],
            failed_plan=describe_plan(case.plan),
            chosen_plan="none fits" if decision is None else describe_plan(decision.plan),
            is_chosen_again=decision is not None and _is_as_demanding(decision.plan, case.plan),
        )


def _is_as_demanding(chosen: Plan, failed: Plan) -> bool:
    same = all(
        getattr(chosen, name) == getattr(failed, name)
        for name in ("strategy", "activation_checkpointing", "offload_optimizer", "offload_param")
    )
    return same and chosen.micro_batch_size >= failed.micro_batch_size


def _decided(case: Case, *, safety: float) -> Decision | None:
    try:
        return decide(case.spec, cluster=case.cluster, job=case.job, safety=safety)
    except NoPlanFitsError:
        return None


def markdown(choices: list[Choice], failed: list[Failed]) -> str:
    """Return the tables."""
    lines = ["# The planner's choice for well-known jobs", ""]
    for safety in (DEFAULT_SAFETY, 0.0):
        rows = [each for each in choices if each.safety == safety]
        counts = {name: sum(each.verdict == name for each in rows) for name in dict.fromkeys(e.verdict for e in rows)}
        lines += [
            f"## Safety {safety:g}",
            "",
            f"{len(rows)} jobs: " + ", ".join(f"{number} {name}" for name, number in counts.items()) + ".",
            "",
            "| row | job | the source ran | chosen | time over the source's, predicted | |",
            "|---|---|---|---|---|---|",
            *(_line(each) for each in rows),
            "",
        ]
    again = [each.id for each in failed if each.is_chosen_again]
    reported = [f"{each.id}: {', '.join(rows)}" for each in choices if (rows := each.reported_out_of_memory)]
    lines += [
        "Slower, surer: the source's plan fits by the point estimate only, and what is chosen fits at this safety.",
        "",
        f"Choices that the same source reports as out of memory: {'; '.join(reported) or 'none'}.",
        "",
        "## Jobs that users report to have run out of memory",
        "",
        f"{len(failed)} reports that can be planned. The plan that failed, or the same with a larger micro batch, is "
        f"chosen for {len(again)}: {', '.join(again)}. They are among the runs that the memory model calls fitting "
        "(published_memory.md): older software, or settings that are not told.",
        "",
        "| report | what failed | chosen |",
        "|---|---|---|",
        *(f"| {each.id} | {each.failed_plan} | {each.chosen_plan} |" for each in failed),
    ]
    return "\n".join(lines) + "\n"


def _line(each: Choice) -> str:
    ratio = "-" if each.time_over_source is None else f"{each.time_over_source:.3f}"
    return f"| {each.id} | {each.job} | {each.source_plan} | {each.chosen_plan or '-'} | {ratio} | {each.verdict} |"


def main() -> None:
    """Plan every job, print and store the tables."""
    runs = runs_of(JOBS)
    choices = [choice(run, safety=safety) for safety in (DEFAULT_SAFETY, 0.0) for run in runs]
    failed = list(failures())
    text = markdown(choices, failed)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "known_choices.md").write_text(text)
    document = {
        "environment": environment(),
        "choices": [asdict(each) | {"verdict": each.verdict} for each in choices],
        "out_of_memory": [asdict(each) for each in failed],
    }
    (RESULTS / "known_choices.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
