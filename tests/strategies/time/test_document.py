"""The figures in docs/time.md are those of the results."""

from __future__ import annotations

import json
from pathlib import Path

from strategies.time import rates

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "time.md").read_text()


def test_document_tells_the_errors_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "published_throughput.json").read_text())
    for name in ("all", "held_aside"):
        found = results[name]
        assert f"{found['median']:.1%}".replace("%", " %") in TEXT
        assert f"{found['p90']:.1%}".replace("%", " %") in TEXT
        assert f"{found['spearman']:.3f}" in TEXT
        assert str(found["rows"]) in TEXT
    unseen = results["unseen_sources"]
    assert f"On the {unseen['rows']} rows of sources that no constant has seen" in TEXT
    assert f"{100 * unseen['median']:.1f} % and {100 * unseen['p90']:.1f} %" in TEXT


def test_document_tells_the_constants() -> None:
    assert f"{rates.HALF_RATE_WIDTH:.0f} / hidden" in TEXT
    assert f"{1e6 * rates.HOP_S:.1f} µs a rank" in TEXT
    assert f"hides costs {rates.INTERFERENCE:.0%}".replace("%", " %") in TEXT
    assert f"{rates.HOST_BYTES_PER_S / 1e9:.0f} GB/s of host memory" in TEXT
