"""Facts about this machine: CUDA devices, or the CPU as a stand-in with a budget taken from the container's limit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from strategies.cluster import CPU_NAME, Cluster, Gpu, gpu_preset
from strategies.errors import ClusterError
from strategies.units import GIB, MIB

AUTO = "auto"
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Version 2, version 1 (kernel documentation, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst)."""
DEFAULT_GPUS_PER_NODE = 8


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
    device = _device(gpu, found=found, ranks=count)
    if gpu_memory_gib is not None:
        device = Gpu(
            name=device.name,
            memory_bytes=round(gpu_memory_gib * GIB),
            bf16_flops_per_s=device.bf16_flops_per_s,
            hbm_bytes_per_s=device.hbm_bytes_per_s,
            link_bytes_per_s=device.link_bytes_per_s,
            source="--gpu-memory-gib",
        )
    host_bytes = round(host_memory_gib * GIB) if host_memory_gib else (host_memory_bytes() if gpu == AUTO else None)
    per_node = gpus_per_node or (count if device.is_cpu else min(count, DEFAULT_GPUS_PER_NODE))
    return Cluster(gpu=device, gpus=count, gpus_per_node=per_node, host_memory_bytes=host_bytes)


def host_memory_bytes() -> int:
    """Return the memory this process may use: the container's limit where there is one, else the machine's."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for path in CGROUP_LIMITS if (text := _read(path)).isdigit()]
    return min([physical, *limits])


def _device(gpu: str, *, found: list[Gpu], ranks: int) -> Gpu:
    if found:
        return found[0]
    if gpu in (AUTO, CPU_NAME):
        # All ranks share the host's memory, and nothing else is theirs.
        return Gpu(
            name=CPU_NAME, memory_bytes=host_memory_bytes() // ranks, source="memory limit of this machine / ranks"
        )
    return gpu_preset(gpu)


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
    except OSError:
        return ""


def _check_positive(**values: float | None) -> None:
    bad = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in values.items()
        if value is not None and not 0 < value < float("inf")
    ]
    if bad:
        raise ClusterError(f"{', '.join(bad)}: must be a number above zero; correct or leave it out")
