"""The figures in docs/memory.md about published runs are those of the results."""

from __future__ import annotations

import json
from pathlib import Path

from strategies.plan import StrategyName
from strategies.trained import Lora

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


def test_document_tells_the_errors_where_a_part_is_trained() -> None:
    scores = json.loads((ROOT / "benchmarks" / "results" / "lora_memory.json").read_text())["summary"]
    assert f"{scores['runs']} runs of part of a model" in TEXT
    assert f"largest error {_percent(scores['largest_error'])} of such a run" in TEXT
    assert scores["median_error"] < 0.001
    assert scores["lowest"] > -0.005


def test_document_tells_peaks_of_published_adapters() -> None:
    """ms-swift's LoRA of Qwen2.5-7B, as `tests.strategies.memory.test_parts` estimates it."""
    from tests.strategies.memory.test_parts import estimate

    for strategy, published in (("zero2", "18"), ("fsdp2", "14.7"), ("zero3", "16"), ("ddp", "27.5")):
        found = estimate("qwen2.5-7b", StrategyName(strategy), lora=Lora(rank=8)).peak_allocated_bytes / 2**30
        assert f"{found:.1f} for {published}" in TEXT
