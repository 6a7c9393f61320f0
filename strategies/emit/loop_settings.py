"""What a plan asks of a training loop that is not ours, and the plans that such a loop cannot run."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.emit.deepspeed import PRECISIONS, STAGES
from strategies.errors import PlanError
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.offload import require_possible_offload
from strategies.plan import ActivationCheckpointing, Framework, OffloadDevice, Plan, StrategyName

WITHOUT_MASTERS = (Precision.FP32, Precision.FP16_AUTOCAST, Precision.BF16_AUTOCAST, Precision.BF16_PURE)
"""DDP as accelerate and transformers wrap it keeps no fp32 masters beside 16-bit weights."""
ATTENTION = {Attention.FLASH: "sdpa", Attention.EAGER: "eager"}
TORCH_OPTIMIZERS = {
    OptimizerName.ADAMW: "AdamW",
    OptimizerName.SGD: "SGD",
    OptimizerName.ADAFACTOR: "Adafactor",
}
WITH_KERNELS = (OptimizerName.ADAMW, OptimizerName.SGD)
"""Those of torch that come as one fused kernel or as for-each loops."""
MOMENTUM = 0.9
"""Of gradient descent, as scaling/engines/optimizer.py has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What a plan asks of your own code, beside the arguments of accelerate's or transformers' objects."""

    micro_batch_size: int
    """``batch_size`` of the DataLoader of one rank."""
    gradient_clipping: float
    """``max_norm`` of ``accelerator.clip_grad_norm_``; 0: no clipping. Under ZeRO, DeepSpeed clips by itself."""
    dtype: str
    """torch's name of the format that the model is made or loaded in."""
    attn_implementation: str
    """transformers' name."""
    gradient_checkpointing: bool
    """Call ``model.gradient_checkpointing_enable`` before ``prepare``. False under fsdp2, whose plugin does it."""
    optimizer: str
    """Name in ``torch.optim``."""
    optimizer_kwargs: Mapping[str, float | bool]
    """What makes the optimizer hold what was planned; learning rate and decay are yours."""


def loop_settings(decision: Decision) -> LoopSettings:
    """Return what the chosen plan asks of a loop around ``accelerate.Accelerator``.

    Raises:
        PlanError: names the part of the plan that such a loop cannot have.
    """
    job, plan = decision.job, decision.plan
    require_expressible(job, plan, cluster=decision.cluster, target="a loop of your own", optimizers=TORCH_OPTIMIZERS)
    return LoopSettings(
        micro_batch_size=plan.micro_batch_size,
        gradient_clipping=job.gradient_clipping,
        dtype=weights_dtype(job.precision),
        attn_implementation=ATTENTION[job.attention],
        gradient_checkpointing=plan.activation_checkpointing is ActivationCheckpointing.FULL
        and plan.strategy is not StrategyName.FSDP2,
        optimizer=TORCH_OPTIMIZERS[job.optimizer],
        optimizer_kwargs=_optimizer_kwargs(job),
    )


def weights_dtype(precision: Precision) -> str:
    """Return torch's name of the format of the weights, as the forward pass holds them.

    FSDP2 holds the fp32 masters only: accelerate widens what it gets (1.15.0, utils/fsdp_utils.py).
    """
    if precision.weight_bytes == 4:
        return "float32"
    return "bfloat16" if precision.is_bf16 else "float16"


def require_expressible(
    job: Job, plan: Plan, *, cluster: Cluster, target: str, optimizers: Container[OptimizerName]
) -> None:
    """Refuse a plan with a part that ``target`` has no word for: it would train something else than was planned.

    Raises:
        PlanError: names the part, its value and what can be planned instead.
    """
    if plan.strategy.framework is not Framework.PYTORCH:
        raise PlanError(f"strategy={plan.strategy} is {plan.strategy.framework}'s; {target} runs PyTorch's")
    require_possible_offload(plan)
    if job.lora is not None or job.freeze:
        raise PlanError(
            f"lora={job.lora}, freeze={list(job.freeze)}: which weights are trained is a matter of the model, not of "
            f"{target}; train this plan with scaling.train"
        )
    for name, value, possible in (
        ("precision", job.precision, tuple(filter(cluster.gpu.computes_in, precisions(plan.strategy)))),
        ("loss", job.loss, (LossImplementation.STANDARD,)),
        ("activation_checkpointing", plan.activation_checkpointing, _WHOLE_BLOCKS),
        ("checkpoint_every", plan.checkpoint_every, (1,)),
        ("fused_optimizer", job.fused_optimizer, _kernels(job.optimizer, plan.strategy)),
        ("offload_optimizer", plan.offload_optimizer, (OffloadDevice.NONE, OffloadDevice.CPU)),
        ("offload_param", plan.offload_param, (OffloadDevice.NONE, OffloadDevice.CPU)),
    ):
        if value not in possible:
            raise PlanError(
                f"{name}={value} under {plan.strategy} cannot be told to {target}; "
                f"plan again with {name}={' or '.join(map(str, possible))}"
            )
    if job.optimizer not in optimizers:
        raise PlanError(f"optimizer={job.optimizer} cannot be told to {target}; plan again with another optimizer")
    if cluster.gpu.is_cpu:
        _require_on_cpu(job, plan, target=target)


_WHOLE_BLOCKS = (ActivationCheckpointing.NONE, ActivationCheckpointing.FULL)


def precisions(strategy: StrategyName) -> tuple[Precision, ...]:
    """Return the number formats that accelerate and transformers can train in under ``strategy``."""
    if strategy in STAGES:
        return PRECISIONS
    # FSDP2 shards fp32 weights and gathers them in 16 bits: masters and autocast alike.
    return tuple(Precision) if strategy is StrategyName.FSDP2 else WITHOUT_MASTERS


def _kernels(optimizer: OptimizerName, strategy: StrategyName) -> tuple[bool, ...]:
    """Return which of torch's can be had: 2.13 does not know how the fused one of SGD runs on FSDP2's shards."""
    return (False,) if optimizer is OptimizerName.SGD and strategy is StrategyName.FSDP2 else (True, False)


def _require_on_cpu(job: Job, plan: Plan, *, target: str) -> None:
    """Refuse what accelerate 1.15.0 leaves out on CPU ranks without a word.

    It takes the FSDP plugin on GPUs only (state.py, AcceleratorState) and fp16 autocast likewise (accelerator.py).
    """
    if plan.strategy is StrategyName.FSDP2:
        raise PlanError(f"strategy=fsdp2 on gpu=cpu: accelerate ignores it, so {target} would run ddp; plan for a GPU")
    if job.precision is Precision.FP16_AUTOCAST:
        raise PlanError(
            f"precision=fp16-autocast on gpu=cpu: accelerate ignores it, so {target} would run fp32; "
            f"plan again with precision=bf16-autocast"
        )


def _optimizer_kwargs(job: Job) -> Mapping[str, float | bool]:
    momentum = {"momentum": MOMENTUM} if job.optimizer is OptimizerName.SGD else {}
    if job.optimizer not in WITH_KERNELS:
        return momentum
    # By name: torch's own choice differs between devices.
    return {**momentum, "fused" if job.fused_optimizer else "foreach": True}
