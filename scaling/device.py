"""The device that a rank computes on: what the plan was made for, or an error."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import torch

from scaling.errors import LaunchError
from scaling.launch_env import LaunchEnvironment
from strategies.cluster import Gpu
from strategies.decision import Decision
from strategies.job import Precision
from strategies.units import format_bytes

logger = logging.getLogger(__name__)


def choose_device(decision: Decision, launch: LaunchEnvironment) -> torch.device:
    """Return this rank's device: the CPU for a plan that is for CPUs, else the CUDA device of its local rank.

    Raises:
        LaunchError: the plan is for GPUs and there are none, too few, or they lack bf16.
    """
    gpu = decision.cluster.gpu
    # transformers and accelerate import DeepSpeed where it is installed; it would guess.
    os.environ.setdefault("DS_ACCELERATOR", "cpu" if gpu.is_cpu else "cuda")
    if gpu.is_cpu:
        _share_cores(launch, environ=os.environ)
        return torch.device("cpu")
    num_devices = torch.cuda.device_count()
    if launch.local_rank >= num_devices:
        raise LaunchError(
            f"the plan is for gpu={gpu.name} and local_world_size={launch.local_world_size} ranks were started here, "
            f"but this machine has {num_devices} CUDA devices; start fewer ranks, or plan with --gpu cpu"
        )
    device = torch.device("cuda", launch.local_rank)
    torch.cuda.set_device(device)
    if decision.job.precision is Precision.BF16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise LaunchError(f"precision=bf16, but {name} has no bf16; plan again with --precision fp32")
    _warn_if_smaller(gpu, device)
    return device


def threads_per_rank(num_cores: int, local_world_size: int) -> int:
    """Return how many threads each of the ranks on ``num_cores`` cores may use, at least one."""
    return max(1, num_cores // local_world_size)


def _share_cores(launch: LaunchEnvironment, *, environ: Mapping[str, str]) -> None:
    """Share the cores among the ranks of this machine, as torchrun and accelerate do and ``deepspeed`` does not.

    Each rank would start a thread on every core, and the ranks wait for each other at the end of every loop.
    """
    if "OMP_NUM_THREADS" in environ or launch.local_world_size == 1:
        return
    torch.set_num_threads(threads_per_rank(len(os.sched_getaffinity(0)), launch.local_world_size))


def _warn_if_smaller(planned: Gpu, device: torch.device) -> None:
    here = torch.cuda.get_device_properties(device).total_memory
    if here < planned.memory_bytes:
        logger.warning(
            "the plan is for gpu=%s with %s, but %s has %s: it may run out of memory",
            planned.name,
            format_bytes(planned.memory_bytes),
            torch.cuda.get_device_name(device),
            format_bytes(here),
        )
