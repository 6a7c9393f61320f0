"""Products, copies, operators and transfers on the device."""

from __future__ import annotations

import time

import torch

from scaling.calibrate.timing import Stopwatch
from strategies.job import Precision
from strategies.time.calibration import ProductRate
from strategies.units import MIB

CPU_SHAPES = ((32, 128, 128), (64, 256, 256), (256, 512, 512), (1024, 1024, 1024))
"""Rows, inner width, columns; the largest takes 2e9 FLOPs: a twentieth of a second on one core."""
GPU_SHAPES = ((512, 1024, 1024), (2048, 4096, 4096), (8192, 8192, 8192))
FORMATS = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}
MEASURED_FLOPS = {"cpu": 2e8, "cuda": 2e12}
COPY_BYTES = {"cpu": 64 * MIB, "cuda": 512 * MIB}
"""More than caches hold."""
TRANSFER_BYTES = 256 * MIB
NUM_OPERATORS = 500


def product_rates(watch: Stopwatch) -> tuple[ProductRate, ...]:
    """Return FLOP/s of products of a few sizes in fp32 and bf16."""
    shapes = GPU_SHAPES if watch.device.type == "cuda" else CPU_SHAPES
    return tuple(_product_rate(watch, precision, shape) for precision in FORMATS for shape in shapes)


def _product_rate(watch: Stopwatch, precision: Precision, shape: tuple[int, int, int]) -> ProductRate:
    rows, inner, columns = shape
    left = torch.rand(rows, inner, device=watch.device).to(FORMATS[precision])
    right = torch.rand(inner, columns, device=watch.device).to(FORMATS[precision])
    flops = 2.0 * rows * inner * columns
    # Small products are repeated inside one measurement, so that reading the clock does not count.
    inside = max(1, round(MEASURED_FLOPS[watch.device.type] / flops))

    def multiply() -> None:
        for _ in range(inside):
            torch.mm(left, right)

    return ProductRate(precision=precision, flops=flops, flops_per_s=inside * flops / watch.seconds(multiply))


def copy_bytes_per_s(watch: Stopwatch) -> float:
    """Return bytes read and written a second by copies that no cache holds."""
    num_bytes = COPY_BYTES[watch.device.type]
    source = torch.zeros(num_bytes // 4, device=watch.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / watch.seconds(lambda: target.copy_(source))


def operator_s(watch: Stopwatch) -> float:
    """Return the CPU's seconds for one operator with autograd, forward and backward counted as two."""
    tensor = torch.ones(8, device=watch.device, requires_grad=True)

    def chain() -> float:
        start = time.perf_counter()
        value: torch.Tensor = tensor
        for _ in range(NUM_OPERATORS):
            value = value * 1.0
        value.sum().backward()  # type: ignore[no-untyped-call]
        return time.perf_counter() - start

    chain()
    fastest = min(chain() for _ in range(5))
    return watch.slowest(fastest) / (2 * NUM_OPERATORS)


def pcie_bytes_per_s(watch: Stopwatch) -> float:
    """Return bytes/s between pinned host memory and the device, in the slower direction; 0 on a CPU."""
    if watch.device.type != "cuda":
        return 0.0
    there = torch.zeros(TRANSFER_BYTES, dtype=torch.uint8, device=watch.device)
    here = torch.zeros(TRANSFER_BYTES, dtype=torch.uint8).pin_memory()
    both = (
        watch.seconds(lambda: there.copy_(here, non_blocking=True)),
        watch.seconds(lambda: here.copy_(there, non_blocking=True)),
    )
    return TRANSFER_BYTES / max(both)
