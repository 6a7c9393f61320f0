"""How sure a plan must be to fit: its bytes at the upper end of an interval of predictions, against the memory."""

from __future__ import annotations

from strategies.cluster import Cluster
from strategies.decision import Resource
from strategies.errors import PlanError
from strategies.estimate import Estimate
from strategies.learning.run_kind import RunKind
from strategies.memory.interval import upper_ratio
from strategies.records import Device

DEFAULT_SAFETY = 0.9


def needed_bytes(estimate: Estimate, *, cluster: Cluster, safety: float) -> int:
    """Return the smallest device on which the plan runs, at the upper end of the interval that covers ``safety``.

    `Estimate.device_bytes` with what torch allocates scaled by measured / predicted of earlier runs; the point
    estimate where ``safety`` is 0. Where too few runs are on record for any interval, it is the point estimate too.
    """
    in_allocator = estimate.device_bytes - estimate.context_bytes
    kind = estimate.runs_like or (Device.CPU if cluster.gpu.is_cpu else Device.GPU)
    return round(in_allocator * margin(kind, safety, predicted_bytes=in_allocator)) + estimate.context_bytes


def margin(kind: RunKind | Device, safety: float, *, predicted_bytes: int = 0) -> float:
    """Return the factor on what torch allocates in such a run, never below one; larger peaks may have a larger one.

    Raises:
        PlanError: the runs on record cannot tell an interval that wide.
    """
    if not 0 <= safety < 1:
        raise PlanError(f"safety={safety} must be from 0 (the point estimate) to below 1; 0.9 is the 90 % interval")
    return max(1.0, upper_ratio(kind, coverage=safety, predicted_bytes=predicted_bytes)) if safety else 1.0


def shortage(estimate: Estimate, *, cluster: Cluster, safety: float = 0.0) -> tuple[Resource, int] | None:
    """Return what a plan has too little of and by how many bytes; None where it fits.

    A CPU rank's device memory is the host's: only what the plan rests there on purpose is on top, and that is known.
    """
    over = needed_bytes(estimate, cluster=cluster, safety=safety) - cluster.gpu.memory_bytes
    if over > 0:
        return Resource.GPU_MEMORY, over
    if estimate.host is None:
        return None
    if cluster.locked_memory_bytes is not None and estimate.host.locked_bytes > cluster.locked_memory_bytes:
        return Resource.LOCKED_MEMORY, estimate.host.locked_bytes - cluster.locked_memory_bytes
    if cluster.host_memory_bytes is None or cluster.gpu.is_cpu:
        return None
    over = estimate.host.peak.total_bytes - cluster.host_memory_bytes
    return (Resource.HOST_MEMORY, over) if over > 0 else None


def capacity(resource: Resource, cluster: Cluster) -> int:
    """Return the bytes that there are: of one GPU, of one node's host, or of what a rank may lock."""
    known = {
        Resource.GPU_MEMORY: cluster.gpu.memory_bytes,
        Resource.HOST_MEMORY: cluster.host_memory_bytes,
        Resource.LOCKED_MEMORY: cluster.locked_memory_bytes,
    }
    return known[resource] or 0
