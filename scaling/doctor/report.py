"""A diagnosis as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scaling.doctor.diagnose import Diagnosis
from scaling.doctor.findings import Area, Examined, Fact
from scaling.severity import Severity, exit_code
from strategies.units import format_bytes

INDENT = 10
"""Of what belongs to a finding: the longest severity and a gap."""


def lines(found: Diagnosis) -> Iterator[str]:
    """Yield what is wrong, gravest first, then what is here."""
    yield _headline(found)
    yield ""
    for finding in found.findings:
        yield f"{finding.severity:{INDENT - 1}}{finding.message}"
        if finding.fix:
            yield f"{'':{INDENT - 1}}-> {finding.fix}"
    if found.findings:
        yield ""
    yield "Here:"
    for each in found.examined:
        yield from _fact_lines(each)


def _headline(found: Diagnosis) -> str:
    subject = "this machine" if found.asked.plan is None else "the plan on this machine"
    counts = [
        f"{number} {severity}{'s' if number > 1 else ''}"
        for severity in Severity
        if (number := sum(each.severity is severity for each in found.findings))
    ]
    return f"{subject[:1].upper()}{subject[1:]}: {', '.join(counts) or 'nothing is wrong'}"


def _fact_lines(each: Examined) -> Iterator[str]:
    told = [f"{_name(fact)} {_value(fact)}" for fact in each.facts if fact.value is not None]
    missing = [
        _name(fact) for fact in each.facts if fact.value is None and each.area in (Area.PACKAGES, Area.OPERATORS)
    ]
    if missing:
        told.append(f"not here: {', '.join(missing)}")
    if told:
        yield f"  {each.area:14} {'; '.join(told)}"


def _name(fact: Fact) -> str:
    return fact.name.removesuffix("_per_s").removesuffix("_bytes").replace("_", " ")


def _value(fact: Fact) -> str:
    if fact.name.endswith("_bytes_per_s") and isinstance(fact.value, int | float):
        return f"{format_bytes(fact.value)}/s"
    if fact.name.endswith("_bytes") and isinstance(fact.value, int | float):
        return format_bytes(fact.value)
    return str(fact.value)


def as_json(found: Diagnosis, *, plan: str | None) -> dict[str, Any]:
    """Return a diagnosis as it is printed with ``--json``; ``plan``: the file that was given."""
    return {
        "exit_code": exit_code(found.findings),
        "plan": plan,
        "findings": [
            {"severity": finding.severity, "area": each.area, "message": finding.message, "fix": finding.fix}
            for each in found.examined
            for finding in each.findings
        ],
        "facts": {each.area: {fact.name: fact.value for fact in each.facts} for each in found.examined},
    }
