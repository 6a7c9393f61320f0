"""How bad something is that is said about a file or a machine, and the exit code that it adds up to."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """It is refused, or does not do what it says."""
    WARNING = "warning"
    """It runs; something in it is lost, deprecated or likely not meant."""
    NOTE = "note"
    """Worth knowing."""


class Graded(Protocol):
    """Whatever has a severity."""

    @property
    def severity(self) -> Severity: ...


def exit_code(findings: Iterable[Graded]) -> int:
    """Return 2 where any finding is an error, else 0."""
    return 2 if any(finding.severity is Severity.ERROR for finding in findings) else 0
