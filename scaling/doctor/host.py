"""Host memory: what there is under the limit that comes first, what is taken now, and what the plan takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Area, Examined, Finding, error, examined, note, warning
from scaling.doctor.processes import Process, largest_processes
from strategies.detect import HostMemory, host_memory
from strategies.units import GIB, format_bytes

OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
NEVER = "2"
"""Of overcommit_memory: no process may reserve more than there is (proc(5)); CUDA reserves far more than it uses."""
SMALL_BYTES = 2 * GIB
"""Two ranks with torch and DeepSpeed imported take 0.7 GiB, before any model."""
NUM_LARGEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Memory of this machine or container."""

    memory: HostMemory
    largest: tuple[Process, ...]
    """The processes that take most, of those that can be seen."""
    overcommit: str = ""


def examine(asked: Asked) -> Examined:
    facts = read()
    return examined(
        Area.HOST_MEMORY,
        findings(facts, asked.plan),
        limit_bytes=facts.memory.limit_bytes,
        set_by=facts.memory.of,
        used_bytes=facts.memory.used_bytes,
        free_bytes=facts.memory.free_bytes,
        plan_bytes=asked.plan.host_bytes if asked.plan else None,
    )


def read() -> HostFacts:
    try:
        overcommit = OVERCOMMIT.read_text().strip()
    except OSError:
        overcommit = ""
    return HostFacts(memory=host_memory(), largest=largest_processes(NUM_LARGEST), overcommit=overcommit)


def findings(facts: HostFacts, plan: Needs | None) -> Iterator[Finding]:
    """Yield what the plan lacks; without one, what any run would soon lack."""
    memory, moment = facts.memory, plan.host_moment if plan else None
    limit = f"{format_bytes(memory.limit_bytes)} ({memory.of})"
    taken = f"{format_bytes(memory.used_bytes)} of {limit} are in use now"
    if plan and moment and moment.total_bytes > memory.free_bytes:
        never = moment.total_bytes > memory.limit_bytes
        message = (
            f"the plan takes {format_bytes(moment.total_bytes)} of a node's RAM {moment.when} ({moment.by_cause()}), "
            f"and {f'there are {limit}' if never else taken}: ranks would be killed (exit code -9)"
        )
        yield error(
            message,
            _smaller(plan, memory)
            if never
            else f"end what takes it ({_named(facts.largest)}); or {_smaller(plan, memory)}",
        )
    elif memory.free_bytes < SMALL_BYTES:
        yield warning(f"host memory is almost full: {taken}", f"end what takes it ({_named(facts.largest)})")
    if plan is not None and moment is None:
        yield note("the plan says nothing of host memory, which was not checked", "plan again with this version")
    if facts.overcommit == NEVER:
        yield warning(
            "vm.overcommit_memory=2: memory that is only reserved counts as used, and CUDA reserves far more than it "
            "uses",
            "sudo sysctl vm.overcommit_memory=0",
        )


def _named(processes: tuple[Process, ...]) -> str:
    told = [f"{each.name}, process {each.pid}: {format_bytes(each.resident_bytes)}" for each in processes]
    return "; ".join(told) or "no process can be seen here"


def _smaller(plan: Needs, memory: HostMemory) -> str:
    gibibytes = f"--host-memory-gib {memory.limit_bytes / GIB:.1f}"
    if not plan.on_gpus:
        return "plan again with fewer ranks (--gpus), or --gpu auto, which counts this memory"
    fewer = " or fewer --gpus-per-node" if plan.ranks > 1 else ""
    return f"plan again with {gibibytes}{fewer}, or give the container more memory"
