"""Real runs held aside: intervals that were learned keep their promise, and the document tells what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learned_cases import cpu_peaks, tensorflow_peaks
from benchmarks.learned_records import by_model, by_setup, peak_outcomes, scores

ROOT = Path(__file__).parents[3]
SCORES: list[dict[str, Any]] = json.loads((ROOT / "benchmarks/results/learned_records.json").read_text())["scores"]
DOCUMENT = (ROOT / "docs" / "planning.md").read_text()


def test_models_that_are_not_on_record_are_covered_no_less_than_before() -> None:
    cases = list(cpu_peaks())
    whole, *_ = scores("", "", [each for split in by_model(cases) for each in peak_outcomes(split)])
    assert whole.coverage_before is not None
    assert whole.coverage_after is not None
    assert whole.above_after is not None
    assert whole.coverage_after >= max(0.9, whole.coverage_before)
    assert whole.above_after <= 0.05


def test_another_frameworks_peaks_are_covered_where_half_of_them_are_known() -> None:
    outcomes = [each for split in by_setup(list(tensorflow_peaks()), 2) for each in peak_outcomes(split)]
    whole, *_ = scores("", "", outcomes)
    assert whole.coverage_after is not None
    assert whole.coverage_after >= 0.9


@pytest.mark.parametrize(
    ("about", "held_aside", "row"),
    [
        ("peak, CPU, PyTorch", "half of the setups", "peaks on CPU, half of the setups"),
        ("peak, CPU, PyTorch", "one model at a time", "peaks on CPU, one of five models at a time"),
        ("peak, CPU, TensorFlow", "half of the setups", "peaks of TensorFlow, half"),
        ("peak, GPU, published", "a quarter of the setups", "published peaks on GPUs, a quarter"),
    ],
)
def test_the_document_tells_the_stored_coverage_of_peaks(about: str, held_aside: str, row: str) -> None:
    found = score(about, held_aside)
    cells = cells_of(row)
    assert cells[1] == f"{100 * found['coverage_before']:.1f} to {found['coverage_after']:.1%}".replace("%", " %")
    above = [round(100 * found[f"above_{when}"], 1) for when in ("before", "after")]
    assert cells[2] in (f"{above[0]} to {above[1]} %", f"{above[0]}, the same" if above[0] == above[1] else "")


@pytest.mark.parametrize(
    ("about", "held_aside", "row"),
    [
        ("step time, CPU", "half of the setups", "step times on CPU, half"),
        ("step time, GPU, published", "half of the setups", "published step times on GPUs, half"),
    ],
)
def test_the_document_tells_the_stored_errors_of_step_times(about: str, held_aside: str, row: str) -> None:
    found = score(about, held_aside)
    cells = cells_of(row)
    for cell, name in zip(cells[3:], ("median", "p90"), strict=True):
        before, after = (100 * found[f"{name}_error_{when}"] for when in ("before", "after"))
        assert cell == f"{before:.1f} to {after:.1f} %"


def score(about: str, held_aside: str) -> dict[str, Any]:
    (found,) = [
        each for each in SCORES if (each["about"], each["held_aside"], each["kind"]) == (about, held_aside, "all")
    ]
    return found


def cells_of(row: str) -> list[str]:
    (line,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| {row} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]
