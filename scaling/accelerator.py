"""The objects that accelerate takes, made from a plan's settings.

Checked against accelerate 1.15.0, which fills every argument that is left out from variables of the environment: what
the plan decides is always given.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from strategies.emit.accelerator import AcceleratorSettings, DdpSettings, Fsdp2Settings


def accelerator_objects(settings: AcceleratorSettings) -> dict[str, Any]:
    """Return the keyword arguments of ``accelerate.Accelerator`` that ``settings`` stand for."""
    from accelerate.utils import GradientAccumulationPlugin, InitProcessGroupKwargs

    handlers: list[Any] = []
    if settings.backend is not None:
        handlers.append(InitProcessGroupKwargs(backend=settings.backend))
    if settings.ddp is not None:
        handlers.append(_ddp_handler(settings.ddp))
    arguments: dict[str, Any] = {
        "mixed_precision": settings.mixed_precision,
        # As a plugin: a variable of the environment would take the place of the bare number.
        "gradient_accumulation_plugin": GradientAccumulationPlugin(
            num_steps=settings.gradient_accumulation_steps,
            sync_each_batch=settings.sync_each_batch,
            # A window that the end of the data cut short would be a step of a smaller global batch.
            sync_with_dataloader=False,
        ),
        "cpu": settings.cpu,
        "kwargs_handlers": handlers,
    }
    if settings.deepspeed is not None:
        arguments["deepspeed_plugin"] = _deepspeed_plugin(settings.deepspeed)
    if settings.fsdp2 is not None:
        arguments["fsdp_plugin"] = _fsdp2_plugin(settings.fsdp2)
    return arguments


def _ddp_handler(settings: DdpSettings) -> Any:
    from accelerate.utils import DistributedDataParallelKwargs

    return DistributedDataParallelKwargs(**asdict(settings))


def _deepspeed_plugin(config: dict[str, Any]) -> Any:
    from accelerate.utils import DeepSpeedPlugin

    # Weights are cut up as the model is made, so that no GPU holds it whole.
    return DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=config["zero_optimization"]["stage"] == 3)


def _fsdp2_plugin(settings: Fsdp2Settings) -> Any:
    import torch
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    compute = getattr(torch, settings.compute_dtype) if settings.compute_dtype else None
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=settings.reshard_after_forward,
        cpu_offload=settings.cpu_offload,
        activation_checkpointing=settings.activation_checkpointing,
        activation_checkpointing_offload=False,
        # accelerate's own choice reduces gradients in 16 bits.
        mixed_precision_policy=MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
        if compute
        else None,
        auto_wrap_policy="transformer_based_wrap",
    )
