"""Ranks as processes of this machine, started from Python: one function in each, on the CPU or a GPU each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scaling.errors import LaunchError
from scaling.launch_env import end_process_group

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Program = Callable[["torch.device"], T]
"""What every rank runs: given its device, inside the process group of all of them."""


def run_ranks(program: Program[T], *, world_size: int, timeout_s: int, on_gpus: bool = False) -> tuple[T, ...]:
    """Return what ``program`` returns in each of ``world_size`` new processes, in rank order.

    They meet in a file, so no port is needed, and speak gloo; with ``on_gpus`` NCCL, each with the GPU of its rank.

    Raises:
        LaunchError: a rank ended without a word, as one does that the system kills for its memory.
        Exception: what the first rank that failed has raised; the others fail in their next collective.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(max_workers=world_size, mp_context=get_context("spawn")) as pool,
    ):
        in_rank = partial(
            _run_rank,
            program,
            world_size=world_size,
            store=Path(folder) / "store",
            timeout_s=timeout_s,
            on_gpus=on_gpus,
        )
        runs = [pool.submit(in_rank, rank) for rank in range(world_size)]
        ended, _ = wait(runs, return_when=FIRST_EXCEPTION)
        try:
            for run in ended:
                run.result()
        except BrokenProcessPool as error:
            raise LaunchError(
                f"one of the {world_size} ranks started here ended without a message; where the machine ran out of "
                f"memory, take fewer ranks or a smaller model"
            ) from error
        return tuple(run.result() for run in runs)


def _run_rank(program: Program[T], rank: int, *, world_size: int, store: Path, timeout_s: int, on_gpus: bool) -> T:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)})
    # Not used, ranks meet in the file; DeepSpeed asks for them.
    os.environ.update({"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
    device = _device(rank, world_size, on_gpus=on_gpus)
    dist.init_process_group(
        "nccl" if on_gpus else "gloo",
        store=FileStore(str(store), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        return program(device)
    finally:
        end_process_group()


def _device(rank: int, world_size: int, *, on_gpus: bool) -> torch.device:
    """Return the rank's GPU, or the CPU with the rank's part of the cores."""
    import torch

    from scaling.device import threads_per_rank

    os.environ.setdefault("DS_ACCELERATOR", "cuda" if on_gpus else "cpu")
    if on_gpus:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        return device
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_per_rank(len(os.sched_getaffinity(0)), world_size))
    return torch.device("cpu")
