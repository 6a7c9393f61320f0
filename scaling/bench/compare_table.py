"""A comparison of two benches as lines to print."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.bench.compare import BenchComparison, Finding, Measure, Verdict
from strategies.units import format_bytes, format_seconds

ORDER = (Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.TOO_FEW_RUNS, Verdict.SAME)


def lines(comparison: BenchComparison) -> list[str]:
    """Return the verdict, every finding with what is worse first, and what else is not the same."""
    return [
        _verdict(comparison),
        *_differences(comparison),
        *_only(comparison),
        *(_line(each) for verdict in ORDER for each in comparison.findings if each.verdict is verdict),
    ]


def _verdict(comparison: BenchComparison) -> str:
    num_cells = len({each.cell for each in comparison.findings})
    cells = f"{num_cells} cell{'' if num_cells == 1 else 's'} in both"
    regressions = comparison.regressions
    if not num_cells:
        return "nothing to compare: no cell is in both"
    if not regressions:
        unsure = len({each.cell for each in comparison.findings if each.verdict is Verdict.TOO_FEW_RUNS})
        return f"no regression; {cells}{f', {unsure} of them with too few runs to judge all' if unsure else ''}"
    worse = len({each.cell for each in regressions})
    return f"{worse} of {cells} got worse"


def _differences(comparison: BenchComparison) -> Iterator[str]:
    for each in comparison.differences:
        yield f"environment: {each}"


def _only(comparison: BenchComparison) -> Iterator[str]:
    for side, names in (("first", comparison.only_before), ("second", comparison.only_after)):
        for name in names:
            yield f"only in the {side}: {name}"


def _line(finding: Finding) -> str:
    note = f"; {finding.note}" if finding.note and finding.change is not None else finding.note
    return f"{finding.verdict}: {finding.cell}: {finding.measure}: {_numbers(finding)}{note}"


def _numbers(finding: Finding) -> str:
    if finding.before is None or finding.after is None or finding.change is None:
        return ""
    if finding.measure is Measure.PEAK_MEMORY:
        return f"{format_bytes(finding.before)} -> {format_bytes(finding.after)} ({finding.change:+.2%})"
    values = f"{format_seconds(finding.before, digits=3)} -> {format_seconds(finding.after, digits=3)}"
    if finding.low is None or finding.high is None:
        return f"{values} ({finding.change:+.1%})"
    interval = f"99 % interval {finding.low:+.1%} to {finding.high:+.1%}"
    return f"{values} ({finding.change:+.1%}, {interval}, p {finding.probability:.3f})"
