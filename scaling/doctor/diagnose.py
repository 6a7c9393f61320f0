"""All checks, none of which may end the others; and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scaling.doctor import (
    devices,
    disk,
    environment,
    host,
    limits,
    model,
    nvme,
    operators,
    packages,
    port,
    shared_memory,
    trainable,
)
from scaling.doctor.asked import Asked
from scaling.doctor.findings import Area, Examined, Finding, examined, note
from scaling.errors import kind_and_line
from scaling.severity import Severity

Check = Callable[[Asked], Examined]
CHECKS: Mapping[Area, Check] = {
    Area.PLAN: trainable.examine,
    Area.DEVICES: devices.examine,
    Area.PACKAGES: packages.examine,
    Area.OPERATORS: operators.examine,
    Area.HOST_MEMORY: host.examine,
    Area.SHARED_MEMORY: shared_memory.examine,
    Area.LIMITS: limits.examine,
    Area.DISK: disk.examine,
    Area.NVME: nvme.examine,
    Area.PORT: port.examine,
    Area.ENVIRONMENT: environment.examine,
    Area.MODEL: model.examine,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found on this machine."""

    asked: Asked
    examined: tuple[Examined, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, the gravest first."""
        ranks = list(Severity)
        found = (finding for each in self.examined for finding in each.findings)
        return tuple(sorted(found, key=lambda finding: ranks.index(finding.severity)))


def diagnose(asked: Asked, checks: Mapping[Area, Check] = CHECKS) -> Diagnosis:
    """Return what every check finds."""
    return Diagnosis(asked=asked, examined=tuple(_guarded(area, check, asked) for area, check in checks.items()))


def _guarded(area: Area, check: Check, asked: Asked) -> Examined:
    """Return what a check finds. One that fails is a note: a machine that is strange in one place has others."""
    try:
        return check(asked)
    except Exception as problem:
        return examined(area, [note(f"{area} could not be looked at: {kind_and_line(problem)}")])
