"""Rates out of a `Calibration`: of products and memory by size, and a GPU's in place of its data sheet's shares."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from strategies.cluster import CPU_NAME
from strategies.errors import ClusterError
from strategies.job import Precision
from strategies.time.calibration import Calibration, CollectiveKind
from strategies.time.rates import HOST_BYTES_PER_S, OF_MEASURED_PRODUCTS, Rates

ADAM_BYTES = 30.0
"""Moved per fp32 parameter by AdamW with a 16-bit copy: what `Rates.host_bytes_per_s` counts in."""


def gpu_rates(known: Rates, calibration: Calibration) -> Rates:
    """Return ``known`` with what was measured on this machine's GPU in its place."""
    full = OF_MEASURED_PRODUCTS * largest_product_rate(calibration, Precision.BF16) or known.matrix_flops_per_s
    fp32 = OF_MEASURED_PRODUCTS * largest_product_rate(calibration, Precision.FP32) or known.fp32_matrix_flops_per_s
    link = _bytes_per_s(calibration, CollectiveKind.ALL_GATHER) * ring_share(calibration.ranks)
    return replace(
        known,
        matrix_flops_per_s=full,
        fp32_matrix_flops_per_s=fp32,
        attention_flops_per_s=known.attention_flops_per_s * full / known.matrix_flops_per_s,
        memory_bytes_per_s=calibration.copy_bytes_per_s,
        link_bytes_per_s=link or known.link_bytes_per_s,
        pcie_bytes_per_s=calibration.pcie_bytes_per_s or known.pcie_bytes_per_s,
        host_bytes_per_s=ADAM_BYTES * calibration.host_adam_elements_per_s or HOST_BYTES_PER_S,
        nvme_bytes_per_s=calibration.disk_write_bytes_per_s or known.nvme_bytes_per_s,
        launch_s=calibration.operator_s or known.launch_s,
        origin=described(calibration),
    )


def described(calibration: Calibration) -> str:
    """Return where the times come from, as a phrase to print."""
    where = calibration.machine if calibration.device == CPU_NAME else calibration.device
    when = f"on {calibration.measured_at[:10]} with {calibration.ranks} ranks"
    return f"measured on this machine ({where}) {when} by scaling calibrate"


def largest_product_rate(calibration: Calibration, precision: Precision) -> float:
    """Return the best FLOP/s of a product in the format that ``precision`` computes in, 0 where none was measured."""
    return max((rate for _, rate in _product_points(calibration, precision.compute_bytes)), default=0.0)


def product_rate(calibration: Calibration, precision: Precision, flops: float) -> float:
    """Return FLOP/s of a product of so many FLOPs, between the sizes that were measured.

    Raises:
        ClusterError: no product was measured in the format that ``precision`` computes in.
    """
    points = _product_points(calibration, precision.compute_bytes)
    if not points:
        raise ClusterError(f"the calibration of {calibration.device} has no products for precision={precision}")
    return between(points, flops)


def memory_rate(calibration: Calibration, precision: Precision, num_bytes: float) -> float:
    """Return bytes/s of elementwise operators on tensors of ``num_bytes``."""
    points = _memory_points(calibration, precision.compute_bytes) or _memory_points(calibration, 4)
    return between(points, num_bytes) if points else calibration.copy_bytes_per_s


def between(points: Sequence[tuple[float, float]], size: float) -> float:
    """Return the rate at ``size``: linear in the logarithms between two points, constant outside.

    >>> between([(1.0, 10.0), (100.0, 1000.0)], 10.0)
    100.0
    >>> between([(1.0, 10.0), (100.0, 1000.0)], 1e6)
    1000.0
    """
    index = bisect_left(points, (size, 0.0))
    if index in (0, len(points)):
        return points[min(index, len(points) - 1)][1]
    (low, slow), (high, fast) = points[index - 1], points[index]
    part = math.log(size / low) / math.log(high / low)
    return float(round(slow * (fast / slow) ** part, 9))


@lru_cache(maxsize=64)
def _product_points(calibration: Calibration, width: int) -> tuple[tuple[float, float], ...]:
    return tuple(
        sorted((each.flops, each.flops_per_s) for each in calibration.products if each.precision.compute_bytes == width)
    )


@lru_cache(maxsize=64)
def _memory_points(calibration: Calibration, width: int) -> tuple[tuple[float, float], ...]:
    found = [each for each in calibration.elementwise if each.precision.compute_bytes == width]
    return tuple(sorted((each.num_bytes, each.bytes_per_s) for each in found))


def ring_share(ranks: int) -> float:
    """Return what part of a tensor a rank of a ring receives."""
    return (ranks - 1) / ranks


def _bytes_per_s(calibration: Calibration, kind: CollectiveKind) -> float:
    """Return bytes/s between the two largest sizes of a collective, so that its latency does not count; 0: unknown."""
    points = sorted((each.num_bytes, each.seconds) for each in calibration.collectives if each.kind is kind)
    if len(points) < 2 or points[-1][1] <= points[-2][1]:
        return 0.0
    return (points[-1][0] - points[-2][0]) / (points[-1][1] - points[-2][1])
