"""`calibrate`: one process a rank measures, rank 0 answers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scaling.launch_env import end_process_group
from strategies.cluster import CPU_NAME
from strategies.errors import CalibrationError
from strategies.job import Precision
from strategies.time.calibration import FORMAT, Calibration, MemoryRate, this_machine, torch_version

if TYPE_CHECKING:
    import torch

    from scaling.calibrate.timing import Stopwatch

T = TypeVar("T")

CPU_RANKS = 2
MAX_RANKS = 64
"""On one machine; each is a process with its own torch."""
TIMEOUT_S = 300
UNHURRIED_S = 25.0
"""Without the imports; on an idle machine of two cores about what everything takes."""


def default_ranks() -> int:
    """Return the GPUs of this machine, or two CPU ranks."""
    import torch

    return torch.cuda.device_count() or CPU_RANKS


def calibrate(*, ranks: int, folder: Path, engines: bool = True) -> Calibration:
    """Return what this machine reaches with ``ranks`` processes at work, one a GPU or on the CPU where there is none.

    ``folder``: where the disk is measured; it must exist. ``engines``: run each training engine too, on CPU ranks,
    which takes most of the time; without them no step time is known there.

    Raises:
        CalibrationError: so many ranks cannot be started here.
    """
    import torch

    num_devices = torch.cuda.device_count()
    if not 1 <= ranks <= (num_devices or MAX_RANKS):
        most = f"{num_devices} CUDA devices" if num_devices else f"at most {MAX_RANKS} CPU ranks"
        raise CalibrationError(f"ranks={ranks}, but this machine runs {most}; give --ranks from 1 to that")
    start = time.perf_counter()
    found = over_ranks(partial(_measure, folder=folder, engines=engines), ranks=ranks)
    return replace(found[0], seconds=round(time.perf_counter() - start, 1))


def over_ranks(measure: Callable[[Stopwatch], T], *, ranks: int) -> tuple[T, ...]:
    """Return what ``measure`` returns in each of so many new processes that form a group, in rank order.

    Raises:
        CalibrationError: one of them was ended from outside.
    """
    with (
        tempfile.TemporaryDirectory() as store,
        ProcessPoolExecutor(max_workers=ranks, mp_context=get_context("spawn")) as pool,
    ):
        runs = [pool.submit(_run_rank, measure, rank, ranks, Path(store) / "store") for rank in range(ranks)]
        try:
            return tuple(run.result() for run in runs)
        except BrokenProcessPool as error:
            raise CalibrationError(
                f"a rank ended while measuring ranks={ranks}, probably for lack of memory; give fewer --ranks"
            ) from error


def _run_rank(measure: Callable[[Stopwatch], T], rank: int, ranks: int, store: Path) -> T:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    from scaling.calibrate.timing import Stopwatch

    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)})
    # Not used, ranks meet in the file; DeepSpeed asks for them.
    os.environ.update({"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
    device = _device(rank, ranks)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=FileStore(str(store), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        watch = Stopwatch(device=device, rank=rank, num_ranks=ranks, hurry_at=time.monotonic() + UNHURRIED_S)
        return measure(watch)
    finally:
        end_process_group()


def _device(rank: int, ranks: int) -> torch.device:
    """Return the rank's GPU, or the CPU with the rank's part of the cores."""
    import torch

    from scaling.device import threads_per_rank

    on_gpu = torch.cuda.is_available()
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if on_gpu else "cpu")
    if on_gpu:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        return device
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_per_rank(len(os.sched_getaffinity(0)), ranks))
    return torch.device("cpu")


def _measure(watch: Stopwatch, *, folder: Path, engines: bool) -> Calibration:
    """Return the calibration; it is the same on every rank but for the disk, which rank 0 alone writes to."""
    from scaling.calibrate.engine_costs import engine_costs
    from scaling.calibrate.model_costs import measure_bare, with_model_costs

    calibration = _basic(watch, folder=folder)
    if watch.device.type == "cuda":
        return calibration
    bare = measure_bare(watch)
    calibration = with_model_costs(calibration, bare, watch)
    return replace(calibration, engines=engine_costs(watch, bare)) if engines else calibration


def _basic(watch: Stopwatch, *, folder: Path) -> Calibration:
    import torch

    from scaling.calibrate import device_rates, host
    from scaling.calibrate.collective_times import collective_times

    on_gpu, cpu = watch.device.type == "cuda", torch.device("cpu")
    products = device_rates.product_rates(watch)
    copy = device_rates.copy_bytes_per_s(watch)
    adam = host.adam_elements_per_s(watch, device=watch.device)
    on_host = adam if not on_gpu else host.adam_elements_per_s(watch, device=cpu)
    write, read = host.disk_bytes_per_s(folder) if watch.rank == 0 else (0.0, 0.0)
    return Calibration(
        format=FORMAT,
        device=torch.cuda.get_device_name(watch.device) if on_gpu else CPU_NAME,
        machine=this_machine(),
        torch=torch_version(),
        ranks=watch.num_ranks,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        products=products,
        elementwise=(MemoryRate(precision=Precision.FP32, num_bytes=1.0, bytes_per_s=copy),),
        copy_bytes_per_s=copy,
        operator_s=device_rates.operator_s(watch),
        weight_s_per_param=0.0,
        collectives=collective_times(watch),
        model=(),
        engines=(),
        adam_elements_per_s=adam,
        norm_elements_per_s=host.norm_elements_per_s(watch),
        host_adam_elements_per_s=watch.num_ranks * on_host,
        pcie_bytes_per_s=device_rates.pcie_bytes_per_s(watch),
        disk_write_bytes_per_s=write,
        disk_read_bytes_per_s=read,
    )
