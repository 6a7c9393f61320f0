"""The figures in docs/memory.md about published runs are those of the results."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "memory.md").read_text()


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def test_document_tells_the_errors_against_published_peaks() -> None:
    scores = json.loads((ROOT / "benchmarks" / "results" / "published_memory.json").read_text())["summary"]
    everything, alike = scores["peaks"], scores["peaks_of_like_implementations"]
    assert f"All {everything['rows']} scored peaks: median error {_percent(everything['median_error'])}" in TEXT
    assert f"90th percentile {_percent(everything['p90_error'])}" in TEXT
    assert f"The {alike['rows']} of implementations like ours" in TEXT
    assert f"{_percent(alike['median_error'])} and {_percent(alike['p90_error'])}" in TEXT
    assert f"{_percent(scores['outcomes_right'])} of {scores['outcomes']} runs are called right" in TEXT
    assert f"{scores['oom_right']} of the {scores['oom']} that ran out of memory" in TEXT


def test_document_tells_the_errors_against_engines() -> None:
    scores = json.loads((ROOT / "benchmarks" / "results" / "memory_accuracy.json").read_text())["summary"]
    assert f"{scores['runs']} runs" in TEXT
    assert f"largest error {_percent(scores['largest_error'])}" in TEXT
    assert scores["median_error"] < 0.001
    assert scores["lowest"] > -0.005
