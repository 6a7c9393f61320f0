"""Real ranks on this machine: one process each, gloo between them, one measurement of each."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

from scaling.launch_env import end_process_group
from scaling.meter import Measurement
from scaling.simulate import Program

SETTLE_S = 1.0
"""Far longer than gloo's thread, which has just woken us, needs to drop its reference too."""


def measure_ranks(
    program: Program, *, world_size: int, vocab_size: int | None = None, timeout_s: int = 300
) -> tuple[Measurement, ...]:
    """Return what every rank of ``world_size`` processes holds while all run ``program``, in rank order.

    Gloo's own copies (it clones the input of a reduce-scatter) do not count: no other backend makes them. Collectives
    are waited for at once, which costs time only; `Measurement.num_late_frees` says how often gloo's thread still held
    a tensor that the program had let go.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(max_workers=world_size, mp_context=get_context("spawn")) as pool,
    ):
        store = Path(folder) / "store"
        runs = [
            pool.submit(_run_rank, program, rank, world_size, vocab_size, store, timeout_s)
            for rank in range(world_size)
        ]
        return tuple(run.result() for run in runs)


def _run_rank(
    program: Program, rank: int, world_size: int, vocab_size: int | None, store: Path, timeout_s: int
) -> Measurement:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    from scaling.collectives import completed_collectives
    from scaling.meter import StorageMeter

    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)})
    os.environ["LOCAL_WORLD_SIZE"] = str(world_size)
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})  # not used: ranks meet in the file
    dist.init_process_group(
        "gloo",
        store=FileStore(str(store), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    meter = StorageMeter(rank=rank, world_size=world_size, vocab_size=vocab_size)
    try:
        with completed_collectives(settle_s=SETTLE_S):
            meter.start()
            kept = program(meter)
            meter.stop()
            del kept
    finally:
        end_process_group()
    return meter.measurement()
