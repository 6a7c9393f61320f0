"""A plan as arguments of ``transformers.TrainingArguments``: plain values, which may also stand in a file.

Source of names and habits: transformers 5.24.0, training_args.py, trainer.py and integrations/deepspeed.py.
"""

from __future__ import annotations

import os
from typing import Any

from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.emit.accelerator import fsdp2_settings, mixed_precision, require_room_for_copy
from strategies.emit.deepspeed import STAGES, deepspeed_config
from strategies.emit.loop_settings import MOMENTUM, require_expressible
from strategies.emit.surroundings import require_same_surroundings
from strategies.errors import PlanError
from strategies.job import Job, OptimizerName
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.units import MIB

OPTIMIZERS = {
    OptimizerName.ADAMW: "adamw_torch_fused",
    OptimizerName.ADAMW_8BIT: "adamw_8bit",
    OptimizerName.SGD: "sgd",
    OptimizerName.LION: "lion_32bit",
    OptimizerName.ADAFACTOR: "adafactor",
}
ADAMW_FOR_EACH = "adamw_torch"
TARGET = "TrainingArguments"


def training_arguments(decision: Decision) -> dict[str, Any]:
    """Return the keyword arguments of ``transformers.TrainingArguments`` that the plan decides.

    Raises:
        PlanError: transformers has no word for a part of the plan, or this process is of another run.
    """
    require_told(decision.job, decision.plan, cluster=decision.cluster)
    strategy, cast = decision.plan.strategy, mixed_precision(decision.job.precision)
    require_same_surroundings(decision, os.environ, mixed_precision=cast, counts_alone=False)
    arguments = {
        "per_device_train_batch_size": decision.plan.micro_batch_size,
        "gradient_accumulation_steps": decision.plan.gradient_accumulation_steps,
        "max_grad_norm": decision.job.gradient_clipping,
        "bf16": cast == "bf16",
        "fp16": cast == "fp16",
        **_optimizer(decision.job),
    }
    if strategy in STAGES:
        return arguments | _checkpointing(decision) | {"deepspeed": deepspeed_config(decision)}
    if strategy is StrategyName.FSDP2:
        return arguments | _fsdp2(decision)
    return arguments | _checkpointing(decision) | _ddp(decision)


def require_told(job: Job, plan: Plan, *, cluster: Cluster) -> None:
    """Refuse a plan that transformers has no words for.

    Raises:
        PlanError: names the part of the plan.
    """
    require_expressible(job, plan, cluster=cluster, target=TARGET, optimizers=OPTIMIZERS)
    if job.optimizer is OptimizerName.SGD and job.fused_optimizer:
        raise PlanError(
            f"fused_optimizer=True with optimizer=sgd cannot be told to {TARGET}, which makes torch's for-each one; "
            f"plan with optimizer=adamw, or use a loop of your own"
        )
    if plan.strategy in STAGES and cluster.gpu.is_cpu:
        raise PlanError(
            f"strategy={plan.strategy} on gpu=cpu cannot be told to {TARGET}, which starts DeepSpeed without a "
            f"process group there; plan for a GPU, or use a loop of your own"
        )


def _optimizer(job: Job) -> dict[str, Any]:
    if job.optimizer is OptimizerName.ADAMW and not job.fused_optimizer:
        return {"optim": ADAMW_FOR_EACH}
    momentum = {"optim_args": f"momentum={MOMENTUM}"} if job.optimizer is OptimizerName.SGD else {}
    return {"optim": OPTIMIZERS[job.optimizer], **momentum}


def _checkpointing(decision: Decision) -> dict[str, Any]:
    if decision.plan.activation_checkpointing is ActivationCheckpointing.NONE:
        return {}
    # The names that every transformers 5 knows; 5.24 also calls them activation_checkpointing.
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}


def _ddp(decision: Decision) -> dict[str, Any]:
    """Return what DistributedDataParallel is made with.

    Raises:
        PlanError: there is no room for the second copy of gradients, which transformers does not let one switch off.
    """
    require_room_for_copy(decision, target=TARGET, why="no gradient_as_bucket_view there")
    return {
        "use_cpu": decision.cluster.gpu.is_cpu,
        "ddp_bucket_cap_mb": decision.plan.buckets.reduce_bucket_size * decision.job.precision.weight_bytes / MIB,
        "ddp_find_unused_parameters": False,  # as in `strategies.emit.accelerator.DdpSettings`
        "ddp_broadcast_buffers": False,
    }


def _fsdp2(decision: Decision) -> dict[str, Any]:
    settings = fsdp2_settings(decision.plan, decision.job.precision)
    return {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "reshard_after_forward": settings.reshard_after_forward,
            "cpu_offload": settings.cpu_offload,
            "activation_checkpointing": settings.activation_checkpointing,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        },
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": decision.plan.sync_each_batch}},
    }
