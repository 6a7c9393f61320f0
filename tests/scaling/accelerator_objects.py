"""Make an Accelerator for one plan after another in a process of one rank, and print what each has become.

The variables of the environment are those by which accelerate would overrule or fill in a program's settings.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState

from scaling.engines.deepspeed import import_deepspeed
from scaling.launch_env import end_process_group
from strategies.cluster import Gpu
from strategies.decision import Decision
from strategies.job import Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.units import GIB
from tests.scaling.decisions import toy_decision

HOSTILE = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "7",
    "ACCELERATE_GRADIENT_CLIPPING": "9.0",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "nvme",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
    "FSDP_VERSION": "1",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_OFFLOAD_PARAMS": "true",
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "true",
    "FSDP_AUTO_WRAP_POLICY": "NO_WRAP",
}


def decision_for(
    strategy: str, *, gpu: str = "cpu", precision: Precision = Precision.FP32, clip: float = 0.5, **plan: Any
) -> Decision:
    decision = toy_decision(strategy, world_size=1, accumulation=3, max_norm=clip, precision=precision)
    cluster = replace(decision.cluster, gpu=Gpu(name=gpu, memory_bytes=GIB))
    return replace(decision, cluster=cluster, plan=replace(decision.plan, **plan))


CPU, FULL = OffloadDevice.CPU, ActivationCheckpointing.FULL
DECISIONS = {
    "ddp": decision_for("ddp"),
    "ddp bf16": decision_for("ddp", precision=Precision.BF16_AUTOCAST),
    "zero1": decision_for("zero1"),
    "zero2": decision_for("zero2", precision=Precision.BF16, offload_optimizer=CPU),
    "zero3": decision_for("zero3", precision=Precision.BF16, offload_optimizer=CPU, offload_param=CPU),
    "fsdp2": decision_for("fsdp2", gpu="a", precision=Precision.BF16, activation_checkpointing=FULL),
    "fsdp2 kept": decision_for("fsdp2", gpu="a", reshard_after_forward=False, sync_each_batch=False),
    "fsdp2 offloaded": decision_for("fsdp2", gpu="a", offload_optimizer=CPU, offload_param=CPU),
}


def facts(decision: Decision) -> dict[str, Any]:
    """Return what an Accelerator made for ``decision`` will do."""
    accelerator = Accelerator(**decision.accelerator_kwargs())
    state, gradients = accelerator.state, accelerator.gradient_state
    found: dict[str, Any] = {
        "type": str(accelerator.distributed_type.value),
        "device": accelerator.device.type,
        "processes": accelerator.num_processes,
        "backend": dist.get_backend(),
        "autocast": accelerator.native_amp,
        "steps": accelerator.gradient_accumulation_steps,
        "sync_each_batch": gradients.plugin_kwargs.get("sync_each_batch", False),
        "follows_data": gradients.sync_with_dataloader,
        "ddp": accelerator.ddp_handler and accelerator.ddp_handler.to_kwargs(),
    }
    if accelerator.distributed_type is DistributedType.DEEPSPEED:
        config = dict(state.deepspeed_plugin.deepspeed_config)
        found["silent"] = config.pop("steps_per_print")
        planned = {**decision.deepspeed_config()}
        del planned["steps_per_print"]
        found["same_config"] = config == planned
        found["init_cut"] = state.deepspeed_plugin.zero3_init_flag
    if accelerator.distributed_type is DistributedType.FSDP:
        plugin = state.fsdp_plugin
        policy = plugin.mixed_precision_policy
        found |= {
            "is_fsdp2": accelerator.is_fsdp2,
            "reshards": plugin.reshard_after_forward,
            "checkpoints": plugin.activation_checkpointing,
            "offloads_activations": plugin.activation_checkpointing_offload,
            "offload": type(plugin.cpu_offload).__name__,
            "wraps": plugin.auto_wrap_policy.__name__,
            "formats": policy and [str(policy.param_dtype), str(policy.reduce_dtype)],
        }
    return found


def forget() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    end_process_group()
    for name in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_TORCH_DEVICE"):
        os.environ.pop(name, None)


def main() -> None:
    import_deepspeed(torch.device("cpu"))
    os.environ.update(HOSTILE)
    found = {}
    prepare_backend = PartialState._prepare_backend
    for name, decision in DECISIONS.items():
        if decision.plan.strategy is StrategyName.FSDP2:
            # accelerate runs FSDP2 on GPUs only: here it takes its gloo rank for one.
            PartialState._prepare_backend = lambda *arguments: ("gloo", DistributedType.MULTI_GPU)
            os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
        found[name] = facts(decision)
        PartialState._prepare_backend = prepare_backend
        forget()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
