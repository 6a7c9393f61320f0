"""The host file of DeepSpeed: a node a line, ``HOST slots=N``.

What is read here deepspeed (0.19.8, launcher/runner.py) reads in the same way. It reads more: digits that run on into
other text, hosts without slots, and any number of them, since ``--num_gpus`` wins over the slots without a word. And
any text as a host: pdsh and ssh take a comma, brackets or a dash in front for something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.errors import LaunchError
from strategies.cluster import Cluster

_LINE = re.compile(r"(\S+)\s+slots=([0-9]{1,9})(\s.*)?")
_NAME = re.compile(r"[\w:][\w.:%@-]*")
_MAX_TOLD = 5
"""Wrong lines: a file of something else has thousands."""
_LOCAL = re.compile(r"localhost(\..*)?|127\.\d+\.\d+\.\d+|::1", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One line."""

    name: str
    slots: int
    line: int
    """Its number, from 1."""

    @property
    def is_local(self) -> bool:
        """Whether the name means another machine on every node."""
        return bool(_LOCAL.fullmatch(self.name))


def read_hosts(path: Path, *, cluster: Cluster) -> tuple[Host, ...]:
    """Return the nodes of a host file, which are those of the plan.

    Raises:
        LaunchError: it cannot be read, or names the lines that are wrong and what it should be.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"cannot read the host file {path}: {error}; give a text file of HOST slots=N") from error
    hosts, problems = _parse(lines)
    problems += [*_repeated(hosts), *(_against_plan(hosts, cluster) if not problems else ())]
    if problems:
        more = len(problems) - _MAX_TOLD
        told = [*problems[:_MAX_TOLD], *([f"and {more} more"] if more > 0 else [])]
        raise LaunchError(f"the host file {path} is wrong: {'; '.join(told)}")
    return tuple(hosts)


def _parse(lines: Sequence[str]) -> tuple[list[Host], list[str]]:
    hosts, problems = [], []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line)) is None:
            problems.append(f"line {number} is {line[:80]!r}, not HOST slots=N")
        elif not _NAME.fullmatch(match[1]):
            problems.append(f"line {number} has {match[1][:80]!r} for a host, which is no name or address of one")
        elif not int(match[2]):
            problems.append(f"line {number} gives {match[1]} no slots; leave the node out")
        else:
            hosts.append(Host(name=match[1], slots=int(match[2]), line=number))
    if not hosts and not problems:
        problems.append("it names no node; write HOST slots=N, a node a line")
    return hosts, problems


def _repeated(hosts: Sequence[Host]) -> Iterator[str]:
    first: dict[str, Host] = {}
    for host in hosts:
        other = first.setdefault(host.name.casefold(), host)
        if other is not host:
            yield f"line {host.line} names {host.name} again, after line {other.line}; a node has one line"


def _against_plan(hosts: Sequence[Host], cluster: Cluster) -> Iterator[str]:
    local = [host.name for host in hosts if host.is_local]
    if local and len(hosts) > 1:
        yield f"{local[0]} is another machine on every node; give the name that the other nodes know it by"
    total = sum(host.slots for host in hosts)
    shape = f"the plan is for {cluster.num_nodes} x {cluster.ranks_per_node} = {cluster.gpus} GPUs"
    slots = sorted({host.slots for host in hosts})
    if total != cluster.gpus:
        nodes = f"{len(hosts)} node{'s' * (len(hosts) > 1)}"
        yield f"it has {total} slots on {nodes}, but {shape}; {_plan_again(hosts, total)}"
    elif len(slots) > 1:
        yield f"its nodes have from {slots[0]} to {slots[-1]} slots, but {shape}; every node has as many ranks"
    elif slots[0] != cluster.ranks_per_node:
        yield f"its nodes have {slots[0]} slots, but {shape}; {_plan_again(hosts, total)}"


def _plan_again(hosts: Sequence[Host], total: int) -> str:
    return f"correct them, or plan again with --gpus {total} --gpus-per-node {hosts[0].slots}"
