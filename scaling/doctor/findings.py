"""What a check says: facts about the machine, and findings with a severity and a fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from scaling.severity import Severity


class Area(StrEnum):
    """What a check looks at, in the order of the report."""

    PLAN = "plan"
    DEVICES = "devices"
    PACKAGES = "packages"
    OPERATORS = "operators"
    HOST_MEMORY = "host memory"
    SHARED_MEMORY = "shared memory"
    LIMITS = "limits"
    DISK = "disk"
    NVME = "nvme"
    PORT = "port"
    ENVIRONMENT = "environment"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that was read. The name's end says the unit: ``_bytes``, ``_bytes_per_s``."""

    name: str
    value: str | int | float | None
    """None where it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with the machine, or worth knowing about it."""

    severity: Severity
    message: str
    """What is wrong, with the value."""
    fix: str = ""
    """A command, a flag or what else to do; empty where nothing is to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What one check found."""

    area: Area
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...]


def error(message: str, fix: str) -> Finding:
    return Finding(severity=Severity.ERROR, message=message, fix=fix)


def warning(message: str, fix: str) -> Finding:
    return Finding(severity=Severity.WARNING, message=message, fix=fix)


def note(message: str, fix: str = "") -> Finding:
    return Finding(severity=Severity.NOTE, message=message, fix=fix)


def error_if(needed: bool, message: str, fix: str) -> Finding:
    """Return an error where the plan needs it, else a warning: nothing that only some plans need stops all of them."""
    return error(message, fix) if needed else warning(message, fix)


def examined(area: Area, findings: Iterable[Finding], **facts: str | int | float | None) -> Examined:
    """Return what a check found; ``facts`` by name."""
    read = tuple(Fact(name=name, value=value) for name, value in facts.items())
    return Examined(area=area, facts=read, findings=tuple(findings))
