"""What is said about a file: findings with a severity, the repair of each, and the verdict that they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scaling.severity import Severity as Severity
from scaling.severity import exit_code as exit_code


class Topic(StrEnum):
    """What a finding is about. Its value is the verdict on a file where it is the gravest of all."""

    UNREADABLE = "invalid-json"
    UNREADABLE_YAML = "invalid-yaml"
    UNKNOWN_FILE = "unknown-kind"
    WRONG_TYPE = "wrong-type"
    CONTRADICTION = "contradictory"
    UNKNOWN_KEY = "invalid-unknown-key"
    VERSION = "version-dependent"
    ACCEPTED_TYPE = "wrong-type-accepted"
    WILL_FAIL = "valid-will-fail"
    DEPRECATED = "valid-deprecated"
    UNKNOWN_TOP_KEY = "valid-unknown-top-key"
    ONE_WORLD = "valid-only-for-world"
    """The verdict has the number of ranks behind it."""
    INCOMPLETE = "valid-incomplete"
    SUSPICIOUS = "valid-suspicious"
    OLD = "valid-old"
    HINT = "valid"
    """Does not change the verdict."""


VALID = str(Topic.HINT)


class Action(StrEnum):
    """What a repair does to a key."""

    SET = "set"
    REMOVE = "remove"
    RENAME = "rename"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One change of a file."""

    action: Action
    key: str
    """Dotted path."""
    value: Any = None
    """SET: the new value. RENAME: the new dotted path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a file, or worth knowing about it."""

    severity: Severity
    topic: Topic
    file: str
    key: str
    """Dotted path of the key, empty where the whole file is meant."""
    message: str
    """What is wrong, with the value."""
    fix: str = ""
    """What to do; empty where nothing is to be done."""
    repairs: tuple[Repair, ...] = ()
    world_size: int | None = None
    """ONE_WORLD: the only number of ranks that the file is right for."""


def setting(key: str, value: Any) -> Repair:
    """Return the repair that gives ``key`` a value."""
    return Repair(action=Action.SET, key=key, value=value)


def removing(key: str) -> Repair:
    """Return the repair that takes ``key`` out."""
    return Repair(action=Action.REMOVE, key=key)


def renaming(key: str, new: str) -> Repair:
    """Return the repair that gives the value of ``key`` to ``new``."""
    return Repair(action=Action.RENAME, key=key, value=new)


def verdict(findings: Iterable[Finding]) -> str:
    """Return the verdict on a file: the gravest topic found, in the order of `Topic`."""
    topics = {finding.topic: finding for finding in findings}
    for topic in Topic:
        if topic in topics:
            size = topics[topic].world_size
            return f"{topic}-{size}" if topic is Topic.ONE_WORLD else str(topic)
    return VALID


def ordered(findings: Iterable[Finding]) -> Sequence[Finding]:
    """Return the findings, the gravest first, otherwise as they came; none twice."""
    ranks = {severity: rank for rank, severity in enumerate(Severity)}
    return sorted(_once(findings), key=lambda each: ranks[each.severity])


def _once(findings: Iterable[Finding]) -> list[Finding]:
    seen: dict[tuple[str, str, str], Finding] = {}
    for each in findings:
        seen.setdefault((each.file, each.key, each.message), each)
    return list(seen.values())
