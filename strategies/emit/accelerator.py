"""A plan as the arguments of ``accelerate.Accelerator``, for a training loop of one's own.

Source of names and habits: accelerate 1.15.0, accelerator.py, state.py and utils/dataclasses.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.emit.deepspeed import STAGES, deepspeed_config
from strategies.emit.loop_settings import TORCH_OPTIMIZERS, require_expressible
from strategies.emit.surroundings import require_same_surroundings
from strategies.errors import PlanError
from strategies.job import Job, Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.units import MIB, format_bytes

MixedPrecision = Literal["no", "fp16", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpSettings:
    """What DistributedDataParallel is made with."""

    bucket_cap_mb: float
    """MiB of one bucket, in torch's word."""
    find_unused_parameters: bool = False
    """The trainer's own engine searches for them (scaling/engines/ddp.py), for it zeroes gradients in place, and new
    buckets in the second step would hold them twice. A loop's `zero_grad` drops them: its peak is the same with the
    search and without (measured, torch 2.13), and where it finds nothing torch warns of the time that it costs."""
    gradient_as_bucket_view: bool = True
    broadcast_buffers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp2Settings:
    """What FullyShardedDataParallelPlugin is made with."""

    reshard_after_forward: bool
    cpu_offload: bool
    """Weights, gradients and optimizer states together."""
    activation_checkpointing: bool
    compute_dtype: Literal["float16", "bfloat16"] | None
    """Format of gathered weights; gradients are reduced in fp32. None: everything in the weights' own format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSettings:
    """An ``Accelerator`` that runs a plan; at most one of the last three is there."""

    mixed_precision: MixedPrecision
    gradient_accumulation_steps: int
    sync_each_batch: bool
    """Gradients are reduced after every micro batch, which keeps no whole gradient of a sharded model."""
    cpu: bool
    backend: str | None
    """Of the process group, where accelerate would choose none."""
    ddp: DdpSettings | None = None
    fsdp2: Fsdp2Settings | None = None
    deepspeed: dict[str, Any] | None = None


def accelerator_kwargs(decision: Decision) -> dict[str, Any]:
    """Return the keyword arguments of ``accelerate.Accelerator`` in a process of the plan's run.

    Raises:
        PlanError: accelerate has no word for a part of the plan, or this process is of another run.
    """
    settings = accelerator_settings(decision)
    require_same_surroundings(decision, os.environ, mixed_precision=settings.mixed_precision, counts_alone=True)
    # The one step from deciding to executing: accelerate takes objects of its own, so that it must be imported.
    from scaling.accelerator import accelerator_objects

    return accelerator_objects(settings)


def accelerator_settings(decision: Decision) -> AcceleratorSettings:
    """Return the settings that make an ``Accelerator`` run the chosen plan.

    Raises:
        PlanError: names the part of the plan that accelerate has no word for.
    """
    require_told(decision.job, decision.plan, cluster=decision.cluster)
    plan, precision = decision.plan, decision.job.precision
    strategy, on_cpu = plan.strategy, decision.cluster.gpu.is_cpu
    if strategy is StrategyName.DDP and plan.gradient_accumulation_steps > 1:
        require_room_for_copy(
            decision, target="accelerate", why="micro batches before the last add up beside the buckets"
        )
    return AcceleratorSettings(
        mixed_precision=mixed_precision(precision),
        gradient_accumulation_steps=plan.gradient_accumulation_steps,
        sync_each_batch=plan.sync_each_batch if strategy is StrategyName.FSDP2 else strategy in STAGES,
        # Told to use the CPU, accelerate leaves DeepSpeed out; not told, it makes no process group there.
        cpu=on_cpu and strategy is StrategyName.DDP,
        backend="gloo" if on_cpu and strategy in STAGES else None,
        ddp=_ddp(plan, precision) if strategy is StrategyName.DDP else None,
        fsdp2=fsdp2_settings(plan, precision) if strategy is StrategyName.FSDP2 else None,
        deepspeed=deepspeed_config(decision),
    )


def require_told(job: Job, plan: Plan, *, cluster: Cluster) -> None:
    """Refuse a plan that accelerate has no words for.

    Raises:
        PlanError: names the part of the plan.
    """
    require_expressible(job, plan, cluster=cluster, target="accelerate", optimizers=TORCH_OPTIMIZERS)


def require_room_for_copy(decision: Decision, *, target: str, why: str) -> None:
    """Refuse DDP where gradients that lie beside their buckets as well have no room. Measured with torch 2.13.

    Raises:
        PlanError: says how much is lacking.
    """
    gpu, gpus = decision.cluster.gpu, decision.cluster.gpus
    if gpus == 1 or not decision.estimate.memory.phases:  # one rank has no buckets; or nothing was predicted
        return
    copy = decision.num_params * decision.job.precision.weight_bytes
    lacking = decision.estimate.device_bytes + copy - gpu.memory_bytes
    if lacking > 0:
        raise PlanError(
            f"strategy=ddp by {target} holds gradients twice ({why}), {format_bytes(copy)} more a GPU than planned and "
            f"{format_bytes(lacking)} more than {gpu.name} has; plan with another strategy, or train with scaling.train"
        )


def mixed_precision(precision: Precision) -> MixedPrecision:
    """Return accelerate's word. Weights that are 16-bit throughout need no casting."""
    if precision in (Precision.FP32, Precision.BF16_PURE):
        return "no"
    return "bf16" if precision.is_bf16 else "fp16"


def fsdp2_settings(plan: Plan, precision: Precision) -> Fsdp2Settings:
    """Return what FSDP2 is made with."""
    compute: dict[str, Literal["float16", "bfloat16"] | None] = {"no": None, "fp16": "float16", "bf16": "bfloat16"}
    return Fsdp2Settings(
        reshard_after_forward=plan.reshard_after_forward,
        cpu_offload=plan.offload_param is OffloadDevice.CPU,
        activation_checkpointing=plan.activation_checkpointing is ActivationCheckpointing.FULL,
        compute_dtype=compute[mixed_precision(precision)],
    )


def _ddp(plan: Plan, precision: Precision) -> DdpSettings:
    return DdpSettings(bucket_cap_mb=plan.buckets.reduce_bucket_size * precision.weight_bytes / MIB)
