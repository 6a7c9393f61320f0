"""Seconds of the optimizer step itself: on the GPU, or over PCIe on the host's CPUs, or from NVMe."""

from __future__ import annotations

from strategies.cluster import Cluster
from strategies.job import Job, OptimizerName, Precision
from strategies.plan import REPLICATED, OffloadDevice, Plan
from strategies.time.rates import Rates

STATE_NUMBERS = {
    OptimizerName.ADAMW: 2.0,
    OptimizerName.ADAMW_8BIT: 0.5,
    OptimizerName.SGD: 1.0,
    OptimizerName.LION: 1.0,
    OptimizerName.ADAFACTOR: 0.1,
}
"""Optimizer states of a parameter, in numbers of the width of the weights that are updated."""
UNFUSED_PASSES = 2.5
"""foreach kernels read and write their temporaries; a fused kernel touches everything once."""
CLIPPING_PASSES = 3
"""Norm (read), scale (read, write)."""


def state_bytes_touched(job: Job) -> float:
    """Return the bytes that the update of a parameter reads and writes: weight, states, gradient, 16-bit copy."""
    width = 2 if job.precision is Precision.BF16_PURE else 4
    copy = job.precision.weight_bytes if job.precision.has_master_weights else 0
    return 2 * width * (1 + STATE_NUMBERS[job.optimizer]) + width + copy


def optimizer_seconds(num_params: int, *, cluster: Cluster, job: Job, plan: Plan, rates: Rates) -> float:
    """Return the seconds from the last gradient to the last updated weight of one rank's share, gathers left out."""
    share = num_params / (1 if plan.strategy in REPLICATED else cluster.gpus)
    if plan.offload_optimizer is not OffloadDevice.NONE:
        return _offloaded(share, cluster=cluster, job=job, plan=plan, rates=rates)
    update = state_bytes_touched(job) * (1 if job.fused_optimizer else UNFUSED_PASSES)
    clipping = CLIPPING_PASSES * job.precision.weight_bytes if job.gradient_clipping else 0
    return share * (update + clipping) / rates.memory_bytes_per_s


def _offloaded(share: float, *, cluster: Cluster, job: Job, plan: Plan, rates: Rates) -> float:
    """Gradients down, the update on the node's CPUs, weights up; states in NVMe are read and written once."""
    ranks = cluster.ranks_per_node
    weight = job.precision.weight_bytes
    host = share * ranks * state_bytes_touched(job) / rates.host_bytes_per_s
    transfer = share * 2 * weight / rates.pcie_bytes_per_s
    disk = 0.0
    if plan.offload_optimizer is OffloadDevice.NVME:
        disk = share * ranks * 2 * 4 * (1 + STATE_NUMBERS[job.optimizer]) / rates.nvme_bytes_per_s
    return host + transfer + disk
