"""Published runs that a step time can be compared with: rows of ``reference/measured.csv`` as cases.

A row of data-parallel full training that is usable for throughput and not of low confidence becomes a case
(`published_cases`) or is left out with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from benchmarks.published_cases import LeftOut, Row, case_of, published_rows
from strategies.cases.case import Case, read_case
from strategies.errors import ScalingError
from strategies.time.rates import Rates
from strategies.time.step_time import StepTime, step_time

GPUS_PER_NODE = {"BSZ3": 4, "KEMP": 4}
"""Where the source says that its nodes are not of 8."""
NOT_COMPARABLE = {
    "COLO-028": "the page names two GPU models",
}
FITTED = frozenset(
    {f"LF-{number:03d}" for number in range(1, 217, 2)}
    | {"TTC-001", "TTC-003", "TTC-022", "TTC-026", "KEMP-001", "KEMP-002"}
    | {"BSZ3-025", "BSZ3-026", "BSZ3-028", "BSZ3-030", "BSZ3-031"}
)
"""Rows that constants were fitted on: every second one of llm-foundry, and a few of each GPU with a single source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A published run that can be compared."""

    row: Row
    case: Case

    @property
    def compiled(self) -> bool:
        return self.row["compile"] == "y"

    @property
    def measured(self) -> float:
        return float(self.row["tokens_per_s_per_gpu"])

    def predict(self, rates: Rates | None = None) -> StepTime:
        assert self.case.plan is not None
        case = self.case
        return step_time(
            case.spec, cluster=case.cluster, job=case.job, plan=self.case.plan, compiled=self.compiled, rates=rates
        )


@cache
def published_runs() -> tuple[tuple[Run, ...], dict[str, str]]:
    """Return the comparable runs, and why each other row is left out."""
    runs, left_out = [], {}
    for row in published_rows():
        if "tput" not in row["usable_for"].split() or row["confidence"] == "low":
            continue
        try:
            runs.append(Run(row=row, case=_case(row)))
        except (LeftOut, ScalingError) as reason:
            left_out[row["id"]] = str(reason)
    return tuple(runs), left_out


def _case(row: Row) -> Case:
    if row["id"] in NOT_COMPARABLE:
        raise LeftOut(NOT_COMPARABLE[row["id"]])
    case = case_of(row)
    cluster = case["cluster"]
    if (per_node := GPUS_PER_NODE.get(row["id"].split("-")[0])) is not None:
        cluster["gpus_per_node"] = min(per_node, cluster["gpus"])
    return read_case(json.dumps(case), number=1)


def runs_of(ids: Iterable[str]) -> list[Run]:
    """Return the comparable runs with these ids."""
    wanted = set(ids)
    return [run for run in published_runs()[0] if run.row["id"] in wanted]
