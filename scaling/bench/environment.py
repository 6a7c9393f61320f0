"""What times depend on beside the cell: versions, device, cores, threads."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from scaling.bench.result import Environment
from scaling.versions import versions
from strategies.cluster import Cluster

THREADS = "OMP_NUM_THREADS"
CPU_INFO = Path("/proc/cpuinfo")


def environment_of(cluster: Cluster) -> Environment:
    """Return what there is here for ranks of ``cluster``."""
    return Environment(
        versions=versions(),
        device=processor() if cluster.gpu.is_cpu else cluster.gpu.name,
        num_cores=num_cores(),
        omp_num_threads=rank_environ(cluster)[THREADS],
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
    )


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    """Return the processor's name, its architecture where the system does not tell it."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def rank_environ(cluster: Cluster) -> Mapping[str, str]:
    """Return what ranks are told beside what is set here.

    Launchers disagree on the threads of a rank (torchrun: one, deepspeed: all cores), and times would follow from that;
    CPU ranks share the cores evenly instead, unless the user has said how many.
    """
    share = max(1, num_cores() // cluster.gpus) if cluster.gpu.is_cpu else 1
    told = {THREADS: os.environ.get(THREADS) or str(share)}
    # Only so that DeepSpeed's launcher does not look for GPUs where the plan is for CPUs.
    return told | ({"DS_ACCELERATOR": "cpu"} if cluster.gpu.is_cpu else {})
