"""The port at which ranks meet: free, or taken, and by whom."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Area, Examined, Finding, error_if, examined, warning
from scaling.doctor.processes import folders, opened, read_process
from scaling.ports import free_port, is_free
from strategies.emit.commands import DEFAULT_PORT

TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENS = "0A"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """One port of this machine."""

    number: int
    named_by: str
    """What asks for it: a flag, a variable, or the launchers."""
    is_free: bool
    holder: str = ""
    """Who has it; empty where that cannot be told."""
    another: int = 0
    """A port that is free."""


def examine(asked: Asked) -> Examined:
    number, named_by = wanted(asked)
    if not 0 < number < 2**16:
        bad = warning(f"{named_by} is no port; launchers set it anew", "unset MASTER_PORT, or a number up to 65535")
        return examined(Area.PORT, [bad], number=number)
    facts = read(number, named_by)
    return examined(Area.PORT, findings(facts, asked.plan), number=number, state="free" if facts.is_free else "in use")


def wanted(asked: Asked) -> tuple[int, str]:
    """Return the port that a launch would take and what says so; 0 where that is no number."""
    if asked.port is not None:
        return asked.port, "--master-port"
    text = asked.environ.get("MASTER_PORT", "")
    if text:
        return int(text) if text.isascii() and text.isdigit() else 0, f"MASTER_PORT={text}"
    return DEFAULT_PORT, "the launchers' default"


def read(number: int, named_by: str) -> PortFacts:
    """Return whether the port can be had, as rank 0 takes it: on all addresses."""
    if is_free(number):
        return PortFacts(number=number, named_by=named_by, is_free=True)
    return PortFacts(number=number, named_by=named_by, is_free=False, holder=holder_of(number), another=free_port())


def holder_of(number: int) -> str:
    """Return the process that listens at a port as ``name (process 123)``, empty where it cannot be seen.

    Source: proc(5): net/tcp gives the socket's inode, a process's fd/ links to its sockets.
    """
    inodes = {f"socket:[{inode}]" for table in TCP_TABLES for inode in _listening(table, number)}
    if not inodes:
        return ""
    for folder in folders():
        if inodes.intersection(opened(folder)) and (process := read_process(folder)):
            return f"{process.name} (process {process.pid})"
    return "another user's process"


def _listening(table: Path, number: int) -> Iterator[str]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for words in map(str.split, lines):
        if len(words) > 9 and words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == number:
            yield words[9]


def findings(facts: PortFacts, plan: Needs | None) -> Iterator[Finding]:
    """Yield a port that is taken: nodes cannot meet there.

    On one machine torchrun and accelerate (1.15, utils/launch.py) take another; deepspeed (0.19.8) does not.
    """
    if facts.is_free:
        return
    by = f" by {facts.holder}" if facts.holder else ""
    pid = re.search(r"process (\d+)", facts.holder)
    several_nodes = plan is not None and plan.num_nodes > 1 and not plan.runs_tensorflow
    if several_nodes:
        stops, fix = "launchers stop there, if this is the first node", f"--master-port {facts.another} on every node"
    else:
        stops, fix = (
            "deepspeed stops there",
            f"scaling launch, which finds another; or deepspeed --master_port {facts.another}",
        )
    yield error_if(
        several_nodes,
        f"port {facts.number} ({facts.named_by}) is in use{by}: {stops}",
        f"{fix}{f'; or kill {pid[1]}, if it is a run that was left' if pid else ''}",
    )
