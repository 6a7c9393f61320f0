"""Which process this is, read from the environment that launchers set, and the process group it joins.

Read by hand because launchers differ: `deepspeed` sets LOCAL_SIZE where torch elastic (`torchrun`, `accelerate launch`)
sets LOCAL_WORLD_SIZE, and plain `python` sets nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from scaling.errors import LaunchError

if TYPE_CHECKING:
    import torch

REQUIRED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
GLOO_GRACE_S = 0.1
"""torch 2.13: a thread of gloo drops what the backward stashed for its all-reduce (autograd/graph.py, "context"), for
which it needs Python's lock. Python ending meanwhile ends that thread, and C++ then ends the process with SIGABRT: in
7 of 28 short DDP runs here. A sleep lets the lock go; with half of this one 25 of 25 runs ended well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnvironment:
    """This process among all."""

    rank: int
    local_rank: int
    """Among the processes of this node; the CUDA device it uses."""
    world_size: int
    local_world_size: int
    is_launched: bool
    """False when started without a launcher: one process, no rendezvous needed."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def read_launch_environment(environ: Mapping[str, str]) -> LaunchEnvironment:
    """Return this process's place in the run.

    Raises:
        LaunchError: some of the variables that every launcher sets are missing, or one is not a number.
    """
    present = [name for name in REQUIRED if environ.get(name)]
    # A stray variable of a finished job is no launch; RANK or WORLD_SIZE alone is.
    if "RANK" not in present and "WORLD_SIZE" not in present:
        return LaunchEnvironment(rank=0, local_rank=0, world_size=1, local_world_size=1, is_launched=False)
    if missing := [name for name in REQUIRED if name not in present]:
        raise LaunchError(
            f"the environment has {', '.join(present)} but not {', '.join(missing)}; start with torchrun, "
            f"accelerate launch or deepspeed, or unset them to run one process"
        )
    if environ["MASTER_PORT"] == "0":
        # torchrun and accelerate replace a zero by a free port; the deepspeed launcher does not.
        raise LaunchError("MASTER_PORT=0 is a different port for every process; give the launcher a free port number")
    rank, local_rank, world_size = (_number(environ, name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    local_name = "LOCAL_WORLD_SIZE" if environ.get("LOCAL_WORLD_SIZE") else "LOCAL_SIZE"
    local_world_size = _number(environ, local_name) if environ.get(local_name) else world_size
    if not (0 <= rank < world_size and 0 <= local_rank < local_world_size <= world_size):
        raise LaunchError(
            f"RANK={rank}, LOCAL_RANK={local_rank}, WORLD_SIZE={world_size}, {local_name}={local_world_size} "
            f"contradict each other; start with torchrun, accelerate launch or deepspeed"
        )
    return LaunchEnvironment(
        rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size, is_launched=True
    )


def join_process_group(launch: LaunchEnvironment, *, device: torch.device, timeout_s: int) -> None:
    """Start torch.distributed among the launched processes; one process alone needs no network port of its own.

    DeepSpeed takes over a group that exists, and with it this timeout; its own default is half an hour whatever
    the user says.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    if launch.is_launched:
        dist.init_process_group(backend, timeout=timeout)
        return
    store = TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=timeout)
    _describe_single_process(os.environ, port=store.port)
    dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)


def leave_process_group(launch: LaunchEnvironment) -> None:
    """End torch.distributed; a process without a launcher gets its environment back as it was."""
    end_process_group()
    if not launch.is_launched:
        for name in (*REQUIRED, "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)


def end_process_group() -> None:
    """End torch.distributed, and leave the threads of gloo behind in a state in which the process may end."""
    import torch.distributed as dist

    is_gloo = dist.get_backend() == dist.Backend.GLOO
    dist.destroy_process_group()
    if is_gloo:
        time.sleep(GLOO_GRACE_S)


def _describe_single_process(environ: MutableMapping[str, str], *, port: int) -> None:
    """Set what a launcher would have set: DeepSpeed reads these variables even for a single process."""
    environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
    environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError as error:
        raise LaunchError(f"{name}={environ[name]!r} is not a whole number; let a launcher set it") from error
