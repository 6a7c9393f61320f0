"""Instant estimates against published peaks and against runs that are known to have fitted or run out of memory.

Method: every row of data-parallel full training in `reference/measured.csv`, and every user's report of full training
in `reference/user_cases.csv`, becomes a case (`published_cases`, `user_cases`) or is left out with its reason. A peak
is compared with the prediction of its kind: ``max_memory_reserved`` with the reserved one, all else with the allocated
one. A run counts as right where `fits` says what happened.

Usage: ``python -m benchmarks.published_memory``; writes ``benchmarks/results/published_memory.json``, ``.md``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import published_cases, user_cases
from benchmarks.environment import environment
from benchmarks.published_cases import LeftOut, Row, other_implementation
from strategies.cases import answer_line

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A published peak beside its prediction, in GiB."""

    id: str
    model: str
    strategy: str
    kind: str
    usable: str
    confidence: str
    measured_gib: float
    predicted_gib: float
    phase: str
    interval_gib: tuple[float, float] | None
    built_differently: str | None

    @property
    def error(self) -> float:
        """Relative; above zero where too much was predicted."""
        return self.predicted_gib / self.measured_gib - 1

    @property
    def is_inside(self) -> bool:
        return self.interval_gib is not None and self.interval_gib[0] <= self.measured_gib <= self.interval_gib[1]

    @property
    def is_scored(self) -> bool:
        return self.usable == "mem" and self.confidence != "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run that is known to have fitted or not."""

    id: str
    model: str
    confidence: str
    happened: str
    predicted: str
    predicted_gib: float
    usable_gib: float
    interval_gib: tuple[float, float] | None

    @property
    def is_right(self) -> bool:
        return self.happened == self.predicted

    @property
    def missed_beyond_interval(self) -> bool:
        """An out-of-memory that is called fitting even at the interval's upper end: the worst a planner can do."""
        return self.happened == "oom" and self.interval_gib is not None and self.interval_gib[1] <= self.usable_gib


@dataclass(slots=True)
class Found:
    """Everything that came out."""

    peaks: list[Peak]
    outcomes: list[Outcome]
    left_out: dict[str, str]


def collect() -> Found:
    """Return all rows, estimated or left out."""
    found = Found([], [], {})
    for rows, case_of in (
        (published_cases.published_rows(), published_cases.case_of),
        (user_cases.user_rows(), user_cases.case_of),
    ):
        for row in rows:
            _add(found, row, case_of)
    return found


def _add(found: Found, row: Row, case_of: Callable[[Row], dict[str, Any]]) -> None:
    try:
        case = case_of(row)
    except LeftOut as reason:
        found.left_out[row["id"]] = str(reason)
        return
    answer = json.loads(answer_line(json.dumps(case), number=1))
    if "error" in answer:
        found.left_out[row["id"]] = answer["error"]
        return
    if row["gpu"]:
        found.outcomes.append(_outcome(row, case, answer))
    if (peak := _peak(row, answer)) is not None:
        found.peaks.append(peak)


def _outcome(row: Row, case: dict[str, Any], answer: dict[str, Any]) -> Outcome:
    from strategies.cluster import gpu_preset
    from strategies.units import gib

    cluster = case["cluster"]
    usable = cluster.get("gpu_memory_gib") or gib(gpu_preset(cluster["gpu"]).memory_bytes)
    return Outcome(
        id=row["id"],
        model=row["model"],
        confidence=row["confidence"],
        happened=row["outcome"],
        predicted="fits" if answer["fits"] else "oom",
        predicted_gib=answer["peak_allocated_gib"],
        usable_gib=usable,
        interval_gib=answer["interval_gib"],
    )


def _peak(row: Row, answer: dict[str, Any]) -> Peak | None:
    usable = row.get("usable_for", "mem_rough").split()
    kinds = [kind for kind in ("mem", "mem_rough", "mem_smi") if kind in usable]
    if row["outcome"] != "fits" or not kinds or not _is_number(row["peak_mem_gib"]):
        return None
    kind = (
        "reserved" if "reserved" in row["peak_mem_kind"] and "allocated or" not in row["peak_mem_kind"] else "allocated"
    )
    return Peak(
        id=row["id"],
        model=row["model"],
        strategy=answer["plan"]["strategy"],
        kind=kind,
        usable=kinds[0],
        confidence=row["confidence"],
        measured_gib=float(row["peak_mem_gib"]),
        predicted_gib=answer[f"peak_{kind}_gib"],
        phase=answer["peak_phase"],
        interval_gib=answer["interval_gib"],
        built_differently=other_implementation(row),
    )


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def summary(found: Found) -> dict[str, Any]:
    """Return the scores."""
    scored = [peak for peak in found.peaks if peak.is_scored]
    errors = sorted(abs(peak.error) for peak in scored)
    alike = sorted(abs(peak.error) for peak in scored if peak.built_differently is None)
    right = [outcome for outcome in found.outcomes if outcome.is_right]
    oom = [outcome for outcome in found.outcomes if outcome.happened == "oom"]
    return {
        "peaks": _spread(errors),
        "peaks_of_like_implementations": _spread(alike),
        "peaks_inside_interval": sum(peak.is_inside for peak in scored) / len(scored),
        "outcomes": len(found.outcomes),
        "outcomes_right": len(right) / len(found.outcomes) if found.outcomes else None,
        "oom": len(oom),
        "oom_right": sum(outcome.is_right for outcome in oom),
        "oom_called_fitting_beyond_interval": [outcome.id for outcome in oom if outcome.missed_beyond_interval],
        "left_out": len(found.left_out),
    }


def _spread(errors: Sequence[float]) -> dict[str, float]:
    return {
        "rows": len(errors),
        "median_error": statistics.median(errors),
        "p90_error": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "largest_error": errors[-1],
    }


def report(found: Found) -> str:
    """Return everything as Markdown."""
    head = ("row", "model", "strategy", "kind", "phase", "published GiB", "predicted GiB", "error", "built differently")
    lines = [_table_row(head), _table_row(["---"] * len(head))]
    for peak in sorted(found.peaks, key=lambda peak: (not peak.is_scored, peak.id)):
        note = "" if peak.is_scored else f" ({peak.usable}, {peak.confidence})"
        sizes = (f"{peak.measured_gib:.2f}", f"{peak.predicted_gib:.2f}", f"{peak.error:+.1%}")
        names = (peak.id + note, peak.model, peak.strategy, peak.kind, peak.phase)
        lines.append(_table_row((*names, *sizes, peak.built_differently or "")))
    lines += ["", "Fits or not, misses only:", ""]
    head = ("row", "model", "happened", "predicted", "peak GiB", "usable GiB")
    lines += [_table_row(head), _table_row(["---"] * len(head))]
    for miss in (outcome for outcome in found.outcomes if not outcome.is_right):
        sizes = (f"{miss.predicted_gib:.2f}", f"{miss.usable_gib:.2f}")
        lines.append(_table_row((f"{miss.id} ({miss.confidence})", miss.model, miss.happened, miss.predicted, *sizes)))
    lines += ["", "Left out:", "", "| row | reason |", "|---|---|"]
    lines += [_table_row(pair) for pair in found.left_out.items()]
    return "\n".join(lines) + "\n"


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    found = collect()
    scores = summary(found)
    (RESULTS / "published_memory.md").write_text(
        "\n".join(f"- {name}: {value}" for name, value in scores.items()) + "\n\n" + report(found)
    )
    result = {
        "environment": environment(),
        "summary": scores,
        "peaks": [asdict(peak) | {"error": peak.error} for peak in found.peaks],
        "outcomes": [asdict(outcome) for outcome in found.outcomes],
        "left_out": found.left_out,
    }
    (RESULTS / "published_memory.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(scores, indent=1))


if __name__ == "__main__":
    main()
