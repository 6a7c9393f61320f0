"""`FrameworkComparison`: what two frameworks did with the same steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.cluster import Cluster
from strategies.job import Job
from strategies.plan import Framework, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRun:
    """One framework's run, from the start of its first process to the end of its last."""

    framework: Framework
    plan: Plan
    job: Job
    """In the words of what ran: TensorFlow has no fused attention."""
    command: str
    losses: tuple[float, ...]
    """Nats per token over the global batch, step by step, before the update."""
    grad_norms: tuple[float, ...]
    step_times_s: tuple[float, ...]
    tokens_per_s: float
    """Median over the steps after those that warm up, all devices together."""
    start_up_s: float
    """From the start of the first process to the begin of the first step: imports, data, model, weights."""
    compile_s: float
    """What the first step takes beyond a later one: graphs are traced and kernels chosen, memory is claimed."""
    whole_s: float
    """Until the last process has ended; the model was exported."""
    predicted_peak_bytes: int
    """Live tensors on the fullest device, from the plan's closed forms."""
    peak_device_bytes: int | None
    """Live tensors of the fullest device, as torch's ``max_memory_allocated`` and TensorFlow's ``get_memory_info`` have
    them. On CPUs PyTorch's are followed by the storage meter in two steps of a run of its own, since that slows it, and
    TensorFlow's are an even share of what its allocator holds for all replicas. None where nothing counted."""
    peak_resident_bytes: int
    """Highest resident set of every process that trains (VmHWM), summed: libraries, graphs and data are in it, and what
    processes share counts in each."""
    num_processes: int
    """That train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkComparison:
    """Two runs of the same steps from the same weights over the same samples."""

    model: str
    num_params: int
    cluster: Cluster
    steps: int
    warm_up_steps: int
    """Left out of medians."""
    largest_loss_difference: float
    """Of any step, over PyTorch's loss of that step."""
    runs: tuple[FrameworkRun, FrameworkRun]
    """PyTorch, then TensorFlow."""
    environment: Mapping[str, str]
