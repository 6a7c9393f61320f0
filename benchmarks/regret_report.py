"""What the regret benchmark stores: JSON, a table and a picture."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environment import environment
from benchmarks.regret_plot import plot
from strategies.job import Job
from strategies.units import format_bytes

NAME = "regret"
MEDIAN_LIMIT, WORST_LIMIT = 0.97, 0.90
"""Chosen over best throughput: issue 5 asks for both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """A plan, with its prediction and what was measured."""

    label: str
    needed_bytes: int
    predicted_s: float
    measured_s: float
    rounds_s: tuple[float, ...]
    """The fastest step of each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """The choice under one budget."""

    model: str
    budget_bytes: int
    num_fitting: int
    chosen: str
    chosen_s: float
    best: str
    best_s: float

    @property
    def ratio(self) -> float:
        """Throughput of the chosen plan over the best: 1 is no regret."""
        return self.best_s / self.chosen_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """All plans of a model, and its budgets."""

    model: str
    job: Job
    plans: tuple[PlanRow, ...]
    budgets: tuple[BudgetRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The whole run in numbers."""

    median_ratio: float
    worst_ratio: float
    rounds: int
    steps: int
    calibration_s: float
    """How long measuring the machine took."""
    seconds: int

    @property
    def is_within_limits(self) -> bool:
        return self.median_ratio >= MEDIAN_LIMIT and self.worst_ratio >= WORST_LIMIT


def store_predictions(predictions: Mapping[str, object], *, folder: Path) -> None:
    """Write what is predicted, before anything is run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_text(json.dumps({"predictions": predictions}, indent=2) + "\n")


def store(results: list[ModelResult], summary: Summary, *, folder: Path) -> None:
    """Write the table as JSON, as text and as a picture."""
    record = {
        "summary": dataclasses.asdict(summary),
        "limits": {"median": MEDIAN_LIMIT, "worst": WORST_LIMIT},
        "models": [
            dataclasses.asdict(result) | {"ratios": [round(row.ratio, 4) for row in result.budgets]}
            for result in results
        ],
        "environment": environment(),
    }
    (folder / f"{NAME}.json").write_text(json.dumps(record, indent=2) + "\n")
    (folder / f"{NAME}.md").write_text("\n".join(table(results, summary)) + "\n")
    plot(
        [(result.model, [(row.predicted_s, row.measured_s) for row in result.plans]) for result in results],
        [(f"{row.model}\n{format_bytes(row.budget_bytes)}", row.ratio) for each in results for row in each.budgets],
        path=folder / f"{NAME}.png",
    )


def table(results: list[ModelResult], summary: Summary) -> list[str]:
    """Return the lines of the text."""
    lines = [
        "# Regret on this machine: the planner's choice against every plan that fits",
        "",
        f"Throughput of the chosen plan over the best measured one: median {summary.median_ratio:.3f} "
        f"(limit {MEDIAN_LIMIT}), worst {summary.worst_ratio:.3f} (limit {WORST_LIMIT}). Two CPU ranks, fp32; "
        f"{summary.rounds} rounds of {summary.steps} steps, after the first only of plans close to a best one, and the "
        "fastest step counts; made by `python -m benchmarks.regret`.",
        "",
        "| model | memory a rank | plans that fit | chosen | ms | best measured | ms | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        lines += [
            f"| {row.model} | {format_bytes(row.budget_bytes)} | {row.num_fitting} | {row.chosen} | "
            f"{row.chosen_s * 1e3:.1f} | {row.best} | {row.best_s * 1e3:.1f} | {row.ratio:.3f} |"
            for row in result.budgets
        ]
    lines += ["", "Predicted step times against measured ones, all plans of a model:", ""]
    lines += ["| model | plans | predicted / measured, median | lowest | highest |", "|---|---|---|---|---|"]
    for result in results:
        errors = sorted(row.predicted_s / row.measured_s for row in result.plans)
        lines.append(
            f"| {result.model} | {len(errors)} | {statistics.median(errors):.2f} | {errors[0]:.2f} | {errors[-1]:.2f} |"
        )
    return lines
