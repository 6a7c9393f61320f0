"""Programs of this machine that are asked, none of which may keep the doctor."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TIMEOUT_S = 60.0
"""Importing torch and opening every GPU of a node takes up to 20 s where its files come over a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program printed, and its exit status."""

    status: int
    out: str
    err: str = ""

    @property
    def last_line(self) -> str:
        """What it says went wrong."""
        lines = [line.strip() for line in (*self.out.splitlines(), *self.err.splitlines()) if line.strip()]
        return lines[-1][:300] if lines else f"exit status {self.status}"


Ask = Callable[[Sequence[str]], Answer | None]
"""Runs a command; None where there is no such program."""


def ask(command: Sequence[str]) -> Answer | None:
    """Return what ``command`` answers, None where it cannot be started."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return Answer(status=124, out="", err=f"{command[0]} did not answer within {TIMEOUT_S:.0f} s")
    except OSError:
        return None
    return Answer(status=done.returncode, out=done.stdout, err=done.stderr)
