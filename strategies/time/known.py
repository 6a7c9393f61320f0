"""What step times of a cluster rest on: a calibration, or a GPU's data sheet and published runs."""

from __future__ import annotations

from dataclasses import replace

from strategies.cluster import Cluster
from strategies.job import Precision
from strategies.time.calibration import Calibration, calibration_for
from strategies.time.measured_rates import described, gpu_rates, largest_product_rate
from strategies.time.rates import Rates, rates_of


def times_known(cluster: Cluster) -> bool:
    """Tell whether step times of ``cluster`` rest on something: a calibration, or a GPU's row and data sheet."""
    if calibration_for(cluster) is not None:
        return True
    if cluster.gpu.is_cpu:
        return False
    return cluster.gpu.bf16_flops_per_s is not None and cluster.gpu.hbm_bytes_per_s is not None


def time_source(cluster: Cluster) -> str:
    """Return where step times of ``cluster`` come from, as a phrase to print beside them."""
    if calibration := calibration_for(cluster):
        other = cluster.gpu.is_cpu and cluster.gpus != calibration.ranks
        rough = f"; rough for {cluster.gpus}, measure with --ranks {cluster.gpus}" if other else ""
        return described(calibration) + rough
    if not times_known(cluster):
        return f"not known for {cluster.gpu.name}; run `scaling calibrate` on it"
    return "shares of the data sheet from published runs (configs/gpu_rates.csv)"


def rates_for(cluster: Cluster, calibration: Calibration | None) -> Rates:
    """Return the rates of the cluster's GPU, with what was measured on it.

    Raises:
        ClusterError: they are not known and nothing was measured.
    """
    if calibration is None:
        return rates_of(cluster.gpu)
    best = largest_product_rate(calibration, Precision.BF16)
    # A GPU without a data sheet here: MFU is then a share of the fastest product.
    gpu = replace(
        cluster.gpu,
        bf16_flops_per_s=cluster.gpu.bf16_flops_per_s or best,
        hbm_bytes_per_s=cluster.gpu.hbm_bytes_per_s or calibration.copy_bytes_per_s,
    )
    return gpu_rates(rates_of(gpu), calibration)
