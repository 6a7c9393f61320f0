"""`calibrate`: one process a rank measures, rank 0 answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scaling.errors import LaunchError
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
UNHURRIED_S = 28.0
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
    import torch

    from scaling.local_ranks import run_ranks

    program = partial(_with_stopwatch, measure, ranks)
    try:
        return run_ranks(program, world_size=ranks, timeout_s=TIMEOUT_S, on_gpus=torch.cuda.is_available())
    except LaunchError as error:
        raise CalibrationError(
            f"a rank ended while measuring ranks={ranks}, probably for lack of memory; give fewer --ranks"
        ) from error


def _with_stopwatch(measure: Callable[[Stopwatch], T], ranks: int, device: torch.device) -> T:
    import torch.distributed as dist

    from scaling.calibrate.timing import Stopwatch

    hurry_at = time.monotonic() + UNHURRIED_S
    return measure(Stopwatch(device=device, rank=dist.get_rank(), num_ranks=ranks, hurry_at=hurry_at))


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
