"""Processes of this machine, as far as this user may look at them. Source: proc(5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One that runs now."""

    pid: int
    name: str
    resident_bytes: int


def folders() -> Iterator[Path]:
    """Yield the folder of every process."""
    yield from PROCESSES.glob("[0-9]*")


def read_process(folder: Path) -> Process | None:
    """Return one process, None where it has ended or may not be looked at."""
    try:
        pages = int((folder / "statm").read_text().split()[1])
        name = (folder / "comm").read_text().strip()
    except (OSError, ValueError, IndexError):
        return None
    return Process(pid=int(folder.name), name=name, resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"))


def largest_processes(number: int) -> tuple[Process, ...]:
    """Return the processes that hold most RAM, largest first, without this one."""
    found = [each for folder in folders() if (each := read_process(folder)) and each.pid != os.getpid()]
    return tuple(sorted(found, key=lambda each: -each.resident_bytes)[:number])


def opened(folder: Path) -> Iterator[str]:
    """Yield what a process has open: paths of files, and ``socket:[inode]``."""
    try:
        descriptors = list((folder / "fd").iterdir())
    except OSError:  # another user's, or it has ended
        return
    for descriptor in descriptors:
        try:
            yield os.readlink(descriptor)
        except OSError:  # closed meanwhile; in this process the one that listed them
            continue


def mapped(folder: Path) -> Iterator[str]:
    """Yield the paths of files that a process has mapped."""
    try:
        lines = (folder / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    for words in (line.split(maxsplit=5) for line in lines):
        if len(words) == 6:
            yield words[5]
