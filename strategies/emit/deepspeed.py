"""The DeepSpeed JSON of a plan, fully resolved: no "auto", nothing left to a default that changes mathematics.

Source of names and defaults: deepspeed 0.19.8, runtime/config.py and runtime/zero/config.py.
"""

from __future__ import annotations

from typing import Any

from strategies.decision import Decision
from strategies.errors import PlanError
from strategies.job import Job, Precision
from strategies.plan import OffloadDevice, Plan, StrategyName

STAGES = {StrategyName.ZERO1: 1, StrategyName.ZERO2: 2, StrategyName.ZERO3: 3}
PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16)
"""What the JSON alone can say: DeepSpeed's own autocast reduces gradients in 16 bits (scaling/engines/autocast.py)."""


def whole_config(decision: Decision) -> dict[str, Any]:
    """Return the DeepSpeed configuration of the chosen plan, for a program of one's own.

    What is no part of such a configuration is up to the program: the model with its attention and its activation
    checkpointing, the loss, and the optimizer (see `strategies.emit.loop_settings`).

    Raises:
        PlanError: DeepSpeed does not run the strategy, or its configuration has no word for a part of the plan.
    """
    config, precision = deepspeed_config(decision), decision.job.precision
    if config is None:
        raise PlanError(
            f"strategy={decision.plan.strategy} is not run by DeepSpeed; plan with strategy=zero1, zero2 or zero3, or "
            f"take accelerator_kwargs() or training_arguments()"
        )
    if precision not in PRECISIONS:
        raise PlanError(
            f"precision={precision} cannot be told to DeepSpeed; plan again with precision={' or '.join(PRECISIONS)}"
        )
    return config


def deepspeed_config(decision: Decision) -> dict[str, Any] | None:
    """Return the DeepSpeed configuration of the chosen plan, None for a strategy that DeepSpeed does not run.

    Raises:
        PlanError: something is to rest on NVMe.
    """
    plan, job = decision.plan, decision.job
    if plan.strategy not in STAGES:
        return None
    return {
        "train_batch_size": job.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        # DeepSpeed's own default has been 1.0 since June 2026 and was 0 before: never leave it out.
        "gradient_clipping": job.gradient_clipping,
        **_precision(job),
        "zero_optimization": _zero_optimization(plan) | _offload(decision),
        # The trainer passes its own torch AdamW, so that every strategy applies the same update.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
        "wall_clock_breakdown": False,
    }


def _precision(job: Job) -> dict[str, Any]:
    return {
        "fp16": _loss_scaling() if job.precision is Precision.FP16 else {"enabled": False},
        "bf16": {"enabled": job.precision is Precision.BF16},
    }


def _loss_scaling() -> dict[str, Any]:
    """Return dynamic loss scaling with the defaults of torch 2.13's GradScaler: down at once, up after 2000 steps."""
    return {
        "enabled": True,
        "auto_cast": False,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 2000,
        "hysteresis": 1,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
    }


def _offload(decision: Decision) -> dict[str, Any]:
    """Return what rests on the host. Pinned where a GPU copies it: without one, pinning is of no use.

    Raises:
        PlanError: something is to rest on NVMe, for which a plan has no path.
    """
    pin_memory = not decision.cluster.gpu.is_cpu
    placed = (("offload_optimizer", decision.plan.offload_optimizer), ("offload_param", decision.plan.offload_param))
    for name, device in placed:
        if device is OffloadDevice.NVME:
            raise PlanError(f"{name}=nvme can be estimated but not run; plan again with {name}=cpu or none")
    return {
        name: {"device": device.value, "pin_memory": pin_memory}
        for name, device in placed
        if device is not OffloadDevice.NONE
    }


def _zero_optimization(plan: Plan) -> dict[str, Any]:
    stage, buckets = STAGES[plan.strategy], plan.buckets
    block: dict[str, Any] = {
        "stage": stage,
        "contiguous_gradients": True,
        "overlap_comm": buckets.overlap_comm,
        "reduce_scatter": True,
        "reduce_bucket_size": buckets.reduce_bucket_size,
        "allgather_partitions": True,
        "allgather_bucket_size": buckets.allgather_bucket_size,
        "round_robin_gradients": False,
    }
    if stage == 3:
        block |= {
            "stage3_prefetch_bucket_size": buckets.stage3_prefetch_bucket_size,
            "stage3_param_persistence_threshold": buckets.stage3_param_persistence_threshold,
            "stage3_max_live_parameters": buckets.stage3_max_live_parameters,
            "stage3_max_reuse_distance": buckets.stage3_max_live_parameters,
            "stage3_gather_16bit_weights_on_model_save": False,
        }
    return block
