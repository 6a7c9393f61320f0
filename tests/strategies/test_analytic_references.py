"""Published values that a right formula gives: each row of reference/analytic_references.csv in scope."""

from __future__ import annotations

import json

import pytest

from benchmarks.analytic_references import RESULTS, Compared, compare_all, markdown

COMPARED, LEFT_OUT = compare_all()


@pytest.mark.parametrize("row", COMPARED, ids=lambda row: row.id)
def test_row_is_reproduced_within_its_tolerance(row: Compared) -> None:
    for ours, expected, allowed in zip(row.ours, row.expected, row.allowed, strict=True):
        assert ours == pytest.approx(expected, abs=allowed + 1e-9)


def test_every_row_is_compared_or_left_out_with_a_reason() -> None:
    assert len(COMPARED) + len(LEFT_OUT) == 133
    assert len(COMPARED) >= 97
    assert all(LEFT_OUT.values())


def test_stored_results_miss_no_row() -> None:
    stored = json.loads((RESULTS / "analytic_references.json").read_text())["rows"]
    assert len(stored) >= 97
    assert all(row["right"] for row in stored)


def test_a_row_beyond_its_tolerance_is_missed() -> None:
    row = COMPARED[0]
    wrong = Compared(
        id=row.id,
        source=row.source,
        quantity=row.quantity,
        unit=row.unit,
        expected=row.expected,
        ours=tuple(1.01 * value for value in row.ours),
        tolerance=row.tolerance,
        allowed=row.allowed,
    )
    assert row.is_right
    assert not wrong.is_right
    assert "**missed**" in markdown([wrong], {})
