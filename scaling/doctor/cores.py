"""Cores that this process may use: those it is bound to, or less where a container's share of time is less."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHARES = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Processors for this process and its children."""

    bound: int
    """What programs count: those that the scheduler may choose from."""
    share: float | None
    """As many cores' time a container gets; None where nothing bounds it."""

    @property
    def usable(self) -> int:
        return self.bound if self.share is None else max(1, min(self.bound, math.ceil(self.share)))


def read_cores() -> Cores:
    """Return the cores of this process. Source: kernel documentation, cgroup-v2.rst (cpu.max), sched-bwc.rst."""
    return Cores(bound=len(os.sched_getaffinity(0)), share=min(_shares(), default=None))


def _shares() -> Iterator[float]:
    version_2 = _numbers(SHARES / "cpu.max")
    version_1 = [*_numbers(SHARES / "cpu" / "cpu.cfs_quota_us"), *_numbers(SHARES / "cpu" / "cpu.cfs_period_us")]
    for numbers in (version_2, version_1):
        if len(numbers) == 2 and numbers[1]:
            yield numbers[0] / numbers[1]


def _numbers(path: Path) -> list[int]:
    """Return the microseconds that a file holds; ``max`` and -1, which mean no bound, are none."""
    try:
        return [int(word) for word in path.read_text().split() if word.isdigit()]
    except OSError:
        return []
