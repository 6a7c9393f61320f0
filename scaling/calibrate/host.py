"""The optimizer, on the device and on the host's CPUs, and the disk."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch

from scaling.calibrate.timing import Stopwatch
from scaling.engines.gradient_norm import clip_factor, global_norm
from scaling.engines.optimizer import OptimizerSettings, make_adamw
from strategies.units import MIB

ADAM_ELEMENTS = {"cpu": 2**22, "cuda": 2**26}
"""States that no cache holds, and every GPU: one GiB there."""
DISK_BYTES = 64 * MIB


def adam_elements_per_s(watch: Stopwatch, *, device: torch.device) -> float:
    """Return the parameters that the trainer's AdamW updates in a second on ``device``, all states there in fp32."""
    parameter = torch.nn.Parameter(torch.zeros(ADAM_ELEMENTS[device.type], device=device))
    parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = make_adamw([parameter], [], OptimizerSettings(weight_decay=0.1))
    return parameter.numel() / watch.seconds(lambda: optimizer.step(), repeats=3)


def norm_elements_per_s(watch: Stopwatch) -> float:
    """Return the gradients whose norm is taken and that are scaled in a second, as the engines do it."""
    gradient = torch.full((ADAM_ELEMENTS[watch.device.type],), 1e-3, device=watch.device)

    def clip() -> None:
        torch._foreach_mul_([gradient], clip_factor(global_norm([gradient]), max_norm=1.0))

    return gradient.numel() / watch.seconds(clip, repeats=3)


def disk_bytes_per_s(folder: Path) -> tuple[float, float]:
    """Return bytes/s of writing until fsync returns, and of reading back, in ``folder``; the better of two runs."""
    runs = [_write_and_read(folder) for _ in range(2)]
    return max(write for write, _ in runs), max(read for _, read in runs)


def _write_and_read(folder: Path) -> tuple[float, float]:
    block = os.urandom(MIB) * (DISK_BYTES // MIB)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="calibrate-") as file:
        start = time.perf_counter()
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written = time.perf_counter()
        file.seek(0)
        file.read()
        read = time.perf_counter()
    return DISK_BYTES / (written - start), DISK_BYTES / (read - written)
