"""Collectives over the real process group: gloo between CPU ranks, NCCL between GPUs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from scaling.calibrate.timing import Stopwatch
from strategies.time.calibration import CollectiveKind, CollectiveTime
from strategies.units import MIB

CPU_SIZES = (4096, MIB, 16 * MIB)
GPU_SIZES = (4096, 16 * MIB, 256 * MIB)
"""Bytes: one for the latency, two for the rate."""


def collective_times(watch: Stopwatch) -> tuple[CollectiveTime, ...]:
    """Return the seconds of each collective at three sizes; nothing where there is only one rank."""
    if watch.num_ranks == 1:
        return ()
    sizes = GPU_SIZES if watch.device.type == "cuda" else CPU_SIZES
    with warnings.catch_warnings():
        # torch 2.13 renames both calls; older versions know only these names.
        warnings.filterwarnings("ignore", category=FutureWarning)
        return tuple(
            CollectiveTime(kind=kind, num_bytes=size, seconds=watch.seconds(_call(kind, size, watch), repeats=8))
            for kind in CollectiveKind
            for size in sizes
        )


def _call(kind: CollectiveKind, num_bytes: int, watch: Stopwatch) -> Callable[[], object]:
    """Return the collective over fp32 numbers of ``num_bytes`` in all, rounded to whole parts."""
    part = torch.ones(max(1, num_bytes // 4 // watch.num_ranks), device=watch.device)
    whole = torch.ones(len(part) * watch.num_ranks, device=watch.device)
    calls: Any = dist
    match kind:
        case CollectiveKind.ALL_REDUCE:
            return lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX)
        case CollectiveKind.REDUCE_SCATTER:
            return lambda: calls.reduce_scatter_tensor(part, whole)
        case CollectiveKind.ALL_GATHER:
            return lambda: calls.all_gather_into_tensor(whole, part)
