"""From live tensors to what a device shows: the caching allocator's slack, and what lies beside the allocator."""

from __future__ import annotations

from strategies.cluster import Cluster
from strategies.units import GIB

ALLOCATOR_SLACK = 0.06
"""Reserved over allocated, less one, with expandable segments: 1.00 to 1.06 in 11 of 12 replayed Llama runs."""
CUDA_CONTEXT_BYTES = GIB
"""Device context, library handles and NCCL's buffers, outside torch's allocator: 0.4 to 1.3 GiB seen in published
runs (1113 and 1343 MiB on V100 with nvidia-smi, transformers' performance documentation)."""


def reserved_bytes(peak_allocated_bytes: int, *, cluster: Cluster) -> int:
    """Return what the caching allocator holds; a CPU has none."""
    if cluster.gpu.is_cpu:
        return peak_allocated_bytes
    return round(peak_allocated_bytes * (1 + ALLOCATOR_SLACK))


def context_bytes(cluster: Cluster) -> int:
    """Return what a process takes on its device beside the allocator."""
    return 0 if cluster.gpu.is_cpu else CUDA_CONTEXT_BYTES
