"""Reserved peaks of published runs on real GPUs, traced without one."""

from __future__ import annotations

import csv

import pytest

from benchmarks.trace_published import REFERENCE, SETUPS, compare, reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TTC-001", "TTC-004"])
def test_reserved_peak_matches_torchtitan_log(name: str) -> None:
    """H100 with expandable segments and A100 with fixed ones; all rows in benchmarks/trace_published.py."""
    published = {row["id"]: row for row in csv.DictReader(REFERENCE.open())}
    for row in compare(name, published[name]):
        assert row.traced_gib == pytest.approx(row.published_gib, rel=0.02), row.step


def test_every_published_row_is_compared_or_left_out_for_a_reason() -> None:
    rows = list(csv.DictReader(REFERENCE.open()))
    assert {row["id"] for row in rows} > set(SETUPS)
    for row in rows:
        if row["id"] not in SETUPS:
            assert not reason(row).endswith(": "), row["id"]
