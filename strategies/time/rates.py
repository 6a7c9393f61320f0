"""`Rates`: what a GPU model and its node reach in training: shares of the data sheet from ``configs/gpu_rates.csv``."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

from strategies.cluster import Gpu
from strategies.errors import ClusterError
from strategies.presets import configs_folder

OTHER = "other"
"""The row of shares for GPUs that have none of their own."""
OF_MEASURED_PRODUCTS = 0.9
"""What training reaches of a benchmark of products (configs/gpus.csv), for a GPU without a row: A100 1.0, H100 0.86."""
MEMORY_SHARE = 0.85
"""Of the data sheet's bandwidth, in elementwise kernels: usual for large tensors, held fixed in the fit of the rest."""
LINK_SHARE = 0.7
"""Bus bandwidth over link bandwidth: 215.6 of 300 GB/s on 8 A100 (Alpa's cluster, in configs/gpus.csv)."""
PCIE_SHARE = 0.7
"""Of the link's data-sheet rate, pinned memory, both directions in use."""
PCIE_BYTES_PER_S = 31.5e9
"""PCIe 4 x16, one direction: where the data sheet's row names no link."""
HOST_BYTES_PER_S = 80e9
"""Memory traffic of Adam on one node's CPUs: 2.7e9 fp32 parameters/s at 30 bytes each. ZeRO-Offload's CPU-Adam does 1e9
to 4e9 on two sockets (Ren et al. 2021, arXiv:2101.06840, table 4)."""
FP32_MATRIX_SHARE = 0.85
"""Of the data sheet's fp32 rate without tensor cores (torch's default: no TF32), which is what products reach."""
HALF_RATE_WIDTH = 588.0
"""Fitted together with the rows of gpu_rates.csv, by benchmarks/time_fit.py."""
HOP_S = 9.49e-6
"""Likewise."""
INTERFERENCE = 0.27
"""Likewise."""
LAUNCH_S = 7e-6
"""Of the CPU per kernel, autograd included."""
NVME_BYTES_PER_S = 5e9
"""Of one node: two PCIe 4 drives, mixed reads and writes. Not checked against a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates that a training step reaches, per GPU where not said otherwise."""

    matrix_flops_per_s: float
    """Large 16-bit products."""
    fp32_matrix_flops_per_s: float
    attention_flops_per_s: float
    """Fused 16-bit kernels, forward and backward together."""
    memory_bytes_per_s: float
    """Elementwise kernels."""
    link_bytes_per_s: float
    """Collectives inside a node."""
    inter_node_bytes_per_s: float
    """Collectives across nodes: one GPU's part of its node's network."""
    pcie_bytes_per_s: float
    """To and from host memory, one direction."""
    peak_flops_per_s: float
    """The data sheet's dense 16-bit rate: the denominator of MFU."""
    host_bytes_per_s: float = HOST_BYTES_PER_S
    """Per node: memory traffic of the optimizer on the CPUs."""
    nvme_bytes_per_s: float = NVME_BYTES_PER_S
    """Per node."""
    half_rate_width: float = HALF_RATE_WIDTH
    """Hidden size at which products run at half the rate of large ones."""
    hop_s: float = HOP_S
    """Latency of a ring per rank and message, waiting for the slowest rank included."""
    interference: float = INTERFERENCE
    """Share of hidden communication that still costs time: its kernels take processors and bandwidth."""
    launch_s: float = LAUNCH_S
    origin: str = ""


CPU_RATES = Rates(
    matrix_flops_per_s=2e10,
    fp32_matrix_flops_per_s=4e10,
    attention_flops_per_s=1e10,
    memory_bytes_per_s=5e9,
    link_bytes_per_s=1e9,
    inter_node_bytes_per_s=1e9,
    pcie_bytes_per_s=5e9,
    peak_flops_per_s=1e11,
    host_bytes_per_s=1e10,
    origin="rough, one core of a server; a calibration replaces it",
)


@cache
def rates_of(gpu: Gpu) -> Rates:
    """Return the rates of ``gpu``: its row of ``configs/gpu_rates.csv``, else the shares of the row ``other``.

    Raises:
        ClusterError: the FLOP/s or the memory bandwidth of the GPU are not known.
    """
    if gpu.is_cpu:
        return CPU_RATES
    shares, facts = _rows("gpu_rates.csv"), _rows("gpus.csv").get(gpu.name, {})
    peak, bandwidth = gpu.bf16_flops_per_s, gpu.hbm_bytes_per_s
    if peak is None or bandwidth is None:
        raise ClusterError(
            f"gpu {gpu.name}: bf16_flops_per_s={peak} and hbm_bytes_per_s={bandwidth}, but a time needs both; "
            "choose a GPU of configs/gpus.csv"
        )
    row = shares.get(gpu.name, shares[OTHER])
    pcie = _number(facts.get("pcie_gb_s_per_direction"), 10**9) or PCIE_BYTES_PER_S
    return Rates(
        matrix_flops_per_s=_products(gpu.name, facts) or float(row["matrix_share"]) * peak,
        fp32_matrix_flops_per_s=FP32_MATRIX_SHARE * (_number(facts.get("fp32_tflops"), 10**12) or peak / 16),
        attention_flops_per_s=float(row["attention_share"]) * peak,
        memory_bytes_per_s=MEMORY_SHARE * bandwidth,
        link_bytes_per_s=LINK_SHARE * (gpu.link_bytes_per_s or pcie),
        inter_node_bytes_per_s=float(row["inter_node_gb_s_per_gpu"]) * 10**9,
        pcie_bytes_per_s=PCIE_SHARE * pcie,
        peak_flops_per_s=peak,
        origin=row["origin"],
    )


def _products(name: str, facts: dict[str, str]) -> float | None:
    """Return FLOP/s of products for a GPU without a row of its own, None where nobody measured them."""
    measured = _number(facts.get("measured_matmul_bf16_tflops"), 10**12)
    return OF_MEASURED_PRODUCTS * measured if measured and name not in _rows("gpu_rates.csv") else None


@cache
def _rows(name: str) -> dict[str, dict[str, str]]:
    with (configs_folder() / name).open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def _number(text: str | None, factor: float) -> float | None:
    return float(text) * factor if text else None
