"""Resolved values: what a setting is in the end, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Origin(StrEnum):
    """Where a value came from."""

    FILE = "file"
    AUTO = "auto"
    """The file says "auto" and something fills it in."""
    DERIVED = "derived"
    """Worked out from other values."""
    LAUNCHER = "launcher"
    """Set by the launcher, whatever the file says."""
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One setting of the run."""

    key: str
    value: Any
    """None with a ``by`` where it depends on what is not known here."""
    origin: Origin
    by: str
    """The file, the package of the default, or what fills it in."""
    why: str = ""
    """What a default changes, where that is easily missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What an "auto" becomes."""

    by: str
    value: Any = None
    """None where it depends on what is not known here."""
