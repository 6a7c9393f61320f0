"""Values that a right formula must give, from papers, documentation and logs, beside what the package gives.

Method: every row of ``reference/analytic_references.csv`` is computed by the package's own functions and compared
within the row's tolerance, or is listed with the reason why it is out of scope.

Usage: ``python -m benchmarks.analytic_references``; writes ``benchmarks/results/analytic_references.json`` and ``.md``;
exit code 1 if a row is missed.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.analytic_formulas import FORMULAS, OutOfScope
from benchmarks.analytic_memory import MEMORY_FORMULAS
from benchmarks.environment import environment

RESULTS = Path(__file__).parent / "results"
REFERENCE = Path(__file__).parent / "reference" / "analytic_references.csv"
Row = Mapping[str, str]
RAN = "largest model that actually ran"
ROUNDED = {"500", "1000", "2000"}
"""The ZeRO paper prints 0.5T, 1T and 2T for 512, 1024 and 2048 billion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row: expected values and ours, in the row's unit."""

    id: str
    source: str
    quantity: str
    unit: str
    expected: tuple[float, ...]
    ours: tuple[float, ...]
    tolerance: str
    allowed: tuple[float, ...]
    """The largest difference that counts as equal, for each value."""

    @property
    def is_right(self) -> bool:
        pairs = zip(self.ours, self.expected, self.allowed, strict=True)
        return all(abs(ours - expected) <= allowed + 1e-9 for ours, expected, allowed in pairs)


def compare_all() -> tuple[list[Compared], dict[str, str]]:
    """Return every row in scope, and why each other one is out of it."""
    compared, left_out = [], {}
    with REFERENCE.open(newline="") as file:
        for row in csv.DictReader(file):
            try:
                compared.append(_compare(row))
            except OutOfScope as reason:
                left_out[row["id"]] = str(reason)
    return compared, left_out


def _compare(row: Row) -> Compared:
    ours = (FORMULAS | MEMORY_FORMULAS)[row["category"]](row["quantity"], json.loads(row["inputs"]))
    if row["quantity"] == RAN:
        return _between(row, ours)
    texts = [text.strip() for text in row["expected"].split("/")]
    return Compared(
        id=row["id"],
        source=row["source"],
        quantity=row["quantity"],
        unit=row["unit"],
        expected=tuple(float(text) for text in texts),
        ours=tuple(round(value, 4) for value in ours),
        tolerance=row["tolerance"],
        allowed=tuple(_allowed(row, text) for text in texts),
    )


def _between(row: Row, ours: tuple[float, ...]) -> Compared:
    """Return a row whose value is to lie between what ran and what model states alone allow: ours holds both."""
    limit, states_alone = ours
    middle = (float(row["expected"]) + states_alone) / 2
    return Compared(
        id=row["id"],
        source=row["source"],
        quantity=row["quantity"],
        unit=row["unit"],
        expected=(round(middle, 4),),
        ours=(round(limit, 4),),
        tolerance=f"between {row['expected']}, which ran, and {states_alone:.1f}, which model states alone would allow",
        allowed=(states_alone - middle,),
    )


def _allowed(row: Row, expected: str) -> float:
    """Return the largest difference that the row's tolerance allows.

    "exact" is half a unit of the last digit that the source prints, or what its formula leaves out: the statistics of
    the norms, below one part in ten thousand.
    """
    tolerance, value = row["tolerance"], float(expected)
    last_digit = 10.0 ** -len(expected.partition(".")[2])
    if tolerance.startswith("0.6% or last printed digit"):
        return max(0.006 * value, last_digit)
    if expected in ROUNDED and "print 0.5T/1T/2T" in tolerance:
        return 0.025 * value
    if tolerance.startswith("exact"):
        return max(0.0001 * value, last_digit / 2) if "evaluate" in tolerance else last_digit / 2
    if (percent := re.match(r"([\d.]+)%", tolerance)) is not None:
        return float(percent[1]) / 100 * value
    return float(tolerance)


def markdown(compared: list[Compared], left_out: Mapping[str, str]) -> str:
    """Return the tables."""
    right = sum(row.is_right for row in compared)
    lines = [
        "# Analytic references",
        "",
        f"{right} of {len(compared)} rows in scope agree within their tolerance; {len(left_out)} are out of scope.",
        "",
        "| row | source | quantity | unit | expected | ours | tolerance | verdict |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in compared),
        "",
        "## Out of scope",
        "",
        "| reason | rows |",
        "|---|---|",
        *(f"| {reason} | {', '.join(ids)} |" for reason, ids in _by_reason(left_out).items()),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Compared) -> str:
    expected, ours = (" / ".join(f"{value:g}" for value in values) for values in (row.expected, row.ours))
    verdict = "right" if row.is_right else "**missed**"
    return (
        f"| {row.id} | {row.source} | {row.quantity} | {row.unit} | {expected} | {ours} | {row.tolerance} | {verdict} |"
    )


def _by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for row, reason in left_out.items():
        reasons.setdefault(reason, []).append(row)
    return reasons


def main() -> int:
    """Compare, store, and say how many rows were missed."""
    compared, left_out = compare_all()
    rows = [asdict(row) | {"right": row.is_right} for row in compared]
    payload: dict[str, Any] = {"environment": environment(), "rows": rows, "out_of_scope": left_out}
    (RESULTS / "analytic_references.json").write_text(json.dumps(payload, indent=1) + "\n")
    (RESULTS / "analytic_references.md").write_text(markdown(compared, left_out))
    missed = [row.id for row in compared if not row.is_right]
    print(f"{len(compared) - len(missed)} of {len(compared)} rows right, {len(left_out)} out of scope")
    print(f"missed: {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
