"""Whether the launcher still lives: one that is gone passes on no signal, and the ranks would go on without an owner.

The ``deepspeed`` launcher (0.19.8) is two processes on one node: ``deepspeed`` waits for ``deepspeed.launcher.launch``,
which starts the ranks. A signal that ends the first is not passed on (launcher/runner.py handles signals for pdsh
alone), so its end is what the ranks can see. ``torchrun`` and ``accelerate launch`` are one process, which passes
SIGTERM on; one that is killed is seen in the same way, and so is ``scaling launch``, which started it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TWO_PROCESSES = "deepspeed.launcher.launch"
STARTER = "SCALING_LAUNCH_PID"
"""Set by ``scaling launch`` for what it starts on its own machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """The processes that this one was started by."""

    parent: int
    grandparent: int | None
    """None where its end means nothing, or where the system does not tell it."""
    starter: int | None = None
    """``scaling launch``; None where the user has started the launcher."""

    @classmethod
    def now(cls) -> Launcher:
        """Return the launcher of this process; to be called while it lives."""
        parent = os.getppid()
        has_two = TWO_PROCESSES in _command_line(parent)
        starter = os.environ.get(STARTER, "")
        return cls(
            parent=parent,
            grandparent=parent_of(parent) if has_two else None,
            starter=int(starter) if starter.isdigit() and is_alive(int(starter)) else None,
        )

    @property
    def is_gone(self) -> bool:
        if os.getppid() != self.parent or (self.starter is not None and not is_alive(self.starter)):
            return True
        return self.grandparent is not None and parent_of(self.parent) != self.grandparent


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, None where the system does not tell (no /proc) or it is gone."""
    fields = _status(pid)
    return int(fields[1]) if fields else None


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and was not waited for does not."""
    if fields := _status(pid):
        return fields[0] not in ("Z", "X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _status(pid: int) -> list[str]:
    """Return state, parent and so on of a process: what follows its name in brackets; see proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
