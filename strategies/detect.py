"""Facts about this machine: CUDA devices, or the CPU as a stand-in with a budget taken from the container's limit."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from strategies.cluster import CPU_NAME, GIVEN, Cluster, Gpu, gpu_preset
from strategies.errors import ClusterError
from strategies.units import GIB, KIB, MIB

AUTO = "auto"
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
MEMORY_INFO = Path("/proc/meminfo")
KERNEL_COUNTERS = Path("/proc/vmstat")
PROCESS_STATUS = Path("/proc/self/status")
CAP_IPC_LOCK = 14
"""capabilities(7), linux/capability.h: may lock any amount."""
DEFAULT_GPUS_PER_NODE = 8
LARGEST = 10**6
"""GPUs, or GiB: more is a slip."""

logger = logging.getLogger(__name__)


def build_cluster(
    *,
    gpu: str,
    gpus: int | None,
    gpus_per_node: int | None,
    gpu_memory_gib: float | None,
    host_memory_gib: float | None,
) -> Cluster:
    """Return the cluster that the flags describe; ``gpu`` is a preset, ``cpu``, or ``auto`` for this machine.

    Raises:
        ClusterError: unknown GPU, or sizes that are not positive.
    """
    _check_positive(
        gpus=gpus, gpus_per_node=gpus_per_node, gpu_memory_gib=gpu_memory_gib, host_memory_gib=host_memory_gib
    )
    found = _local_gpus() if gpu == AUTO else []
    count = gpus or len(found) or 1
    memory_bytes = None if gpu_memory_gib is None else round(gpu_memory_gib * GIB)
    device = _device(gpu, found=found, ranks=count, memory_bytes=memory_bytes)
    host_bytes = round(host_memory_gib * GIB) if host_memory_gib else (host_memory_bytes() if gpu == AUTO else None)
    per_node = gpus_per_node or (count if device.is_cpu else min(count, DEFAULT_GPUS_PER_NODE))
    locked = locked_memory_bytes() if gpu == AUTO else None
    return Cluster(
        gpu=device,
        gpus=count,
        gpus_per_node=per_node,
        host_memory_bytes=host_bytes,
        locked_memory_bytes=locked,
    )


def locked_memory_bytes() -> int | None:
    """Return what this process may lock in RAM (``ulimit -l``), None where nothing bounds it (mlock(2))."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or _has_capability(CAP_IPC_LOCK):
        return None
    return limit


def _has_capability(number: int) -> bool:
    for line in _read(PROCESS_STATUS).splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """RAM under one limit, and how much of it is taken now, by whomever."""

    limit_bytes: int
    used_bytes: int
    """Without the cache of files and of their names, which the kernel takes back before it ends a process."""
    of: str
    """Whose limit: ``this machine``, or the folder of a control group."""

    @property
    def free_bytes(self) -> int:
        return max(self.limit_bytes - self.used_bytes, 0)


def host_memory_bytes() -> int:
    """Return the memory this process may use: the smallest limit of its containers, or what the machine has."""
    return min(each.limit_bytes for each in _host_memories())


def host_memory() -> HostMemory:
    """Return the limit that this process meets first: where least is free, the machine's or a container's."""
    return min(_host_memories(), key=lambda each: each.free_bytes)


def free_swap_bytes() -> int:
    """Return what the machine can still put on its swap disks before it ends a process; 0 where it does not tell."""
    return _fields(MEMORY_INFO).get("SwapFree:", 0) * KIB


def oom_kills() -> int | None:
    """Return how many processes the kernel has ended so far for lack of memory; None where it does not tell.

    Of this process's control group or the one above it where more have ended; outside of groups, of the machine.
    Source: as `_memory_groups`; the counter of the kernel's own, ``oom_kill`` of /proc/vmstat.
    """
    counted = [_fields(folder / files.events).get("oom_kill") for folder, files in _memory_groups()]
    known = [number for number in counted if number is not None]
    return max(known) if known else _fields(KERNEL_COUNTERS).get("oom_kill")


def _host_memories() -> list[HostMemory]:
    """Return the machine's memory, and that of every control group above this process that has a limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = _fields(MEMORY_INFO).get("MemAvailable:", physical // KIB) * KIB
    machine = HostMemory(limit_bytes=physical, used_bytes=max(physical - available, 0), of="this machine")
    return [machine, *(each for each in _limited_groups() if each.limit_bytes < physical)]


def _limited_groups() -> Iterator[HostMemory]:
    for folder, files in _memory_groups():
        if (most := _read(folder / files.limit)).isdigit():  # "max", or no file: no limit
            taken = _read(folder / files.used)
            counted = _fields(folder / "memory.stat")
            reclaimed = (f"{files.prefix}active_file", f"{files.prefix}inactive_file", "slab_reclaimable")
            used_bytes = max(int(taken) - sum(counted.get(name, 0) for name in reclaimed), 0) if taken.isdigit() else 0
            yield HostMemory(limit_bytes=int(most), used_bytes=used_bytes, of=str(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupFiles:
    """What a control group's files are called."""

    limit: str
    used: str
    events: str
    prefix: str
    """Of the lines of memory.stat that count the groups below too."""


_VERSION_2 = _GroupFiles(limit="memory.max", used="memory.current", events="memory.events", prefix="")
_VERSION_1 = _GroupFiles(
    limit="memory.limit_in_bytes", used="memory.usage_in_bytes", events="memory.oom_control", prefix="total_"
)


def _memory_groups() -> Iterator[tuple[Path, _GroupFiles]]:
    """Yield the control groups of this process and those above it, version 2 and version 1.

    Source: kernel documentation, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. A group that is the root of the
    container's own view has another path in /proc than here: then only the root is found, which is that group.
    """
    for line in _read(OWN_CGROUPS).splitlines() or ["0::/", "0:memory:/"]:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not path or (controllers and "memory" not in controllers.split(",")):
            continue
        root, files = (CGROUPS / "memory", _VERSION_1) if controllers else (CGROUPS, _VERSION_2)
        own = root / path.strip("/")
        yield from ((folder, files) for folder in (own, *own.parents) if folder.is_relative_to(root))


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number on each line; empty where it cannot be read."""
    words = (line.split() for line in _read(path).splitlines())
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _device(gpu: str, *, found: list[Gpu], ranks: int, memory_bytes: int | None) -> Gpu:
    if gpu not in (AUTO, CPU_NAME):
        return gpu_preset(gpu, memory_bytes=memory_bytes)
    if found:
        return found[0] if memory_bytes is None else replace(found[0], memory_bytes=memory_bytes, source=GIVEN)
    if gpu == AUTO:
        # A plan for GPUs that silently became one for CPUs would mislead.
        logger.warning("no CUDA device here: planning for CPU ranks. For GPUs that are elsewhere give --gpu NAME")
    # All ranks share the host's memory, and nothing else is theirs.
    share = host_memory_bytes() // ranks if memory_bytes is None else memory_bytes
    return Gpu(name=CPU_NAME, memory_bytes=share, source=GIVEN if memory_bytes else "this machine's limit / ranks")


def _local_gpus() -> list[Gpu]:
    """Return this machine's CUDA devices as the driver reports them; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rsplit(",", 1) for line in answer.splitlines() if "," in line]
    return [
        Gpu(name=name.strip(), memory_bytes=int(mib) * MIB, source="nvidia-smi memory.total")
        for name, mib in rows
        if mib.strip().isdigit()
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _check_positive(**values: float | None) -> None:
    bad = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in values.items()
        if value is not None and not 0 < value <= LARGEST
    ]
    if bad:
        raise ClusterError(
            f"{', '.join(bad)}: must be a number above zero (and at most {LARGEST}); correct or leave it out"
        )
