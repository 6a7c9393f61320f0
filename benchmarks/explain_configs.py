"""What ``scaling explain`` says of configuration files of others, beside what is known about each.

Method: the files of ``benchmarks/reference/configs`` with the status that ``manifest.csv`` gives them (collected
beforehand; the source of every file stands there). A file is read alone, as its user would give it; three that show a
contradiction only for the ranks that DeepSpeed saw are read with those, which the manifest names. A file counts as
broken where there is an error.

Usage: ``python -m benchmarks.explain_configs``; writes ``benchmarks/results/explain_configs.csv``.
"""

from __future__ import annotations

import csv
import re
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from scaling.explain.explanation import Asked, Explanation, explain
from scaling.explain.findings import exit_code
from scaling.explain.sources import load_sources

REFERENCE = Path(__file__).parent / "reference" / "configs"
RESULT = Path(__file__).parent / "results" / "explain_configs.csv"
RANKS_SEEN = re.compile(r"world size seen by DeepSpeed = (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One file: what is expected of it, and what we say."""

    file: str
    source: str
    world_size: str
    """Empty: not given."""
    expected: str
    ours: str
    exit_code: int
    errors: int
    warnings: int
    notes: int


def manifest() -> list[dict[str, str]]:
    """Return the rows of the manifest."""
    with (REFERENCE / "manifest.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def explained(row: dict[str, str]) -> Explanation:
    """Return the explanation of the file of one row."""
    seen = RANKS_SEEN.search(row["notable"])
    sources = load_sources([str(REFERENCE / row["file"])])
    return explain(sources, Asked(world_size=int(seen.group(1)) if seen else None))


def judged(row: dict[str, str]) -> Verdict:
    """Return what we say of the file of one row."""
    found = explained(row)
    counts = [sum(each.severity == severity for each in found.findings) for severity in ("error", "warning", "note")]
    seen = RANKS_SEEN.search(row["notable"])
    return Verdict(
        file=row["file"],
        source=row["source"],
        world_size=seen.group(1) if seen else "",
        expected=row["status"],
        ours=found.verdict_on(found.sources.all[0].name),
        exit_code=exit_code(found.findings),
        errors=counts[0],
        warnings=counts[1],
        notes=counts[2],
    )


def main() -> None:
    """Write the table."""
    verdicts = [judged(row) for row in manifest()]
    with RESULT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Verdict)])
        writer.writerows(astuple(verdict) for verdict in verdicts)
    same = sum(verdict.ours == verdict.expected for verdict in verdicts)
    print(f"{same} of {len(verdicts)} verdicts are those of the manifest; {RESULT}")


if __name__ == "__main__":
    main()
