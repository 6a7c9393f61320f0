"""The same run in another program's words. What that program has no word for is told, not dropped in silence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from scaling.explain.explanation import Explanation
from scaling.explain.lost import lost_in
from scaling.explain.settings import ZERO, Settings, settings_of
from scaling.explain.sources import FileKind, Target
from scaling.explain.tree import AUTO, Tree, block, get, leaves, without_nulls
from scaling.explain.yaml_text import yaml_text
from strategies.errors import ScalingError
from strategies.job import Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.serialize import plain

STAGE = {StrategyName.DDP: 0, StrategyName.ZERO1: 1, StrategyName.ZERO2: 2, StrategyName.ZERO3: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A translated run."""

    text: str
    notes: tuple[str, ...]
    """What is lost, or has to be filled in."""


def convert(found: Explanation, target: Target) -> Converted:
    """Return the run of ``found`` in the words of ``target``.

    Raises:
        ScalingError: the files have errors, or do not say enough.
    """
    errors = [each for each in found.findings if each.severity == "error"]
    if errors:
        raise ScalingError(f"{errors[0].file}: {errors[0].message}; correct it first (--fix), then convert")
    settings = settings_of(found)
    notes = lost_in(target, settings)
    match target:
        case Target.DEEPSPEED:
            tree, more = deepspeed_json(settings)
            return Converted(text=json.dumps(tree, indent=2) + "\n", notes=(*notes, *more))
        case Target.ACCELERATE:
            return Converted(text=yaml_text(accelerate_tree(settings)), notes=tuple(notes))
        case Target.TRAINING_ARGS:
            arguments = training_arguments(settings, _given_arguments(found))
            return Converted(text=json.dumps(arguments, indent=2) + "\n", notes=tuple(notes))
    return Converted(text=json.dumps(plan_tree(settings), indent=2) + "\n", notes=tuple(notes))


def deepspeed_json(settings: Settings) -> tuple[Tree, list[str]]:
    """Return a DeepSpeed configuration, and the "auto" that is left in it."""
    if settings.deepspeed is not None:
        tree = without_nulls(settings.deepspeed)
        left = [path for path, value in leaves(tree) if value == AUTO]
        return tree, [f'"auto" is left at {", ".join(left)}: the Trainer or accelerate fills it in'] if left else []
    stage = 2 if settings.strategy is StrategyName.FSDP2 and not settings.reshard_after_forward else 3
    tree = {
        "train_micro_batch_size_per_gpu": settings.micro_batch_size or AUTO,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps or AUTO,
        "gradient_clipping": AUTO if settings.gradient_clipping is None else settings.gradient_clipping,
        **_precision_blocks(settings.precision),
        ZERO: _zero_block(settings, stage if settings.strategy is StrategyName.FSDP2 else STAGE[settings.strategy]),
    }
    notes = ["weights are kept in 16 bits beside fp32 masters, where FSDP and autocast keep fp32 alone"]
    return tree, notes if settings.precision in (Precision.BF16_AUTOCAST, Precision.FP16_AUTOCAST) else []


def _precision_blocks(precision: Precision | None) -> Tree:
    if precision is None:
        return {"bf16": {"enabled": AUTO}}
    return {"fp16": {"enabled": precision.is_fp16}, "bf16": {"enabled": precision.is_bf16}}


def _zero_block(settings: Settings, stage: int) -> Tree:
    zero: Tree = {"stage": stage}
    if settings.offload_param is not OffloadDevice.NONE and stage == 3:
        zero["offload_param"] = {"device": str(settings.offload_param)}
        zero["offload_optimizer"] = {"device": str(settings.offload_param)}  # FSDP moves states with weights
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return zero


def accelerate_tree(settings: Settings) -> Tree:
    """Return an accelerate configuration with DeepSpeed's settings as flat keys, or with an FSDP block."""
    tree: Tree = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(settings),
        **({} if settings.precision is None else {"mixed_precision": _mixed_precision(settings.precision)}),
        "num_machines": 1,
        "machine_rank": 0,
    }
    if settings.world_size:
        tree["num_processes"] = settings.world_size
    if settings.strategy in STAGE and settings.strategy is not StrategyName.DDP:
        tree["deepspeed_config"] = _flat_deepspeed(settings)
    elif settings.strategy is StrategyName.FSDP2:
        tree["fsdp_config"] = _fsdp_block(settings)
    return tree


POLICY = "TRANSFORMER_BASED_WRAP"
"""Where none is given: NO_WRAP, the default, gathers the whole model at once."""


def _distributed_type(settings: Settings) -> str:
    if settings.strategy is StrategyName.FSDP2:
        return "FSDP"
    if settings.strategy is StrategyName.DDP:
        return "NO" if settings.world_size == 1 else "MULTI_GPU"
    return "DEEPSPEED"


def _mixed_precision(precision: Precision) -> str:
    if precision is Precision.FP32:
        return "no"
    return "bf16" if precision.is_bf16 else "fp16"


def _flat_deepspeed(settings: Settings) -> Tree:
    if OffloadDevice.NVME in (settings.offload_optimizer, settings.offload_param):
        raise ScalingError(
            "offloading to NVMe cannot be told in an accelerate YAML: accelerate launch loses the path; name the "
            "DeepSpeed JSON there with deepspeed_config_file"
        )
    flat: Tree = {
        "zero_stage": STAGE[settings.strategy],
        "offload_optimizer_device": str(settings.offload_optimizer),
        "offload_param_device": str(settings.offload_param),
        "zero3_init_flag": settings.strategy is StrategyName.ZERO3,
    }
    if settings.gradient_accumulation_steps:
        flat["gradient_accumulation_steps"] = settings.gradient_accumulation_steps
    if settings.gradient_clipping is not None:
        flat["gradient_clipping"] = settings.gradient_clipping
    save = get(settings.deepspeed or {}, f"{ZERO}.stage3_gather_16bit_weights_on_model_save", False)
    if settings.strategy is StrategyName.ZERO3:
        flat["zero3_save_16bit_model"] = save is True
    return flat


def _fsdp_block(settings: Settings) -> Tree:
    wrapping = {"auto_wrap_policy": POLICY, "state_dict_type": "SHARDED_STATE_DICT", **(settings.wrapping or {})}
    layers = wrapping.get("transformer_layer_cls_to_wrap")
    if isinstance(layers, list):
        wrapping["transformer_layer_cls_to_wrap"] = ",".join(map(str, layers))
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": settings.reshard_after_forward,
        "fsdp_offload_params": settings.offload_param is not OffloadDevice.NONE,
        "fsdp_activation_checkpointing": settings.activation_checkpointing is ActivationCheckpointing.FULL,
        **{f"fsdp_{name}": value for name, value in wrapping.items()},
    }


def training_arguments(settings: Settings, given: Tree | None) -> Tree:
    """Return TrainingArguments: those that were given, with what the run decides."""
    arguments: Tree = dict(given or {})
    if settings.micro_batch_size:
        arguments["per_device_train_batch_size"] = settings.micro_batch_size
    if settings.gradient_accumulation_steps:
        arguments["gradient_accumulation_steps"] = settings.gradient_accumulation_steps
    if settings.gradient_clipping is not None:
        arguments["max_grad_norm"] = settings.gradient_clipping
    if settings.precision is not None:
        mixed = _mixed_precision(settings.precision)
        arguments |= {"bf16": mixed == "bf16", "fp16": mixed == "fp16"}
    if (
        settings.activation_checkpointing is ActivationCheckpointing.FULL
        and settings.strategy is not StrategyName.FSDP2
    ):
        arguments["gradient_checkpointing"] = True
    if settings.deepspeed is not None:
        arguments |= _optimizer_arguments(settings.deepspeed)
        arguments["deepspeed"] = _for_trainer(settings.deepspeed)
    elif settings.strategy is StrategyName.FSDP2:
        arguments["fsdp"] = True
        arguments["fsdp_config"] = {
            "version": 2,
            "reshard_after_forward": settings.reshard_after_forward,
            "cpu_offload": settings.offload_param is not OffloadDevice.NONE,
            "activation_checkpointing": settings.activation_checkpointing is ActivationCheckpointing.FULL,
            "auto_wrap_policy": POLICY,
            **(settings.wrapping or {}),
        }
    return arguments


ARGUMENT_OF = {
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_num_steps": "warmup_steps",
    "scheduler.params.total_num_steps": "max_steps",
}
"""What the Trainer demands to be the same in both places."""


def _optimizer_arguments(tree: Tree) -> Tree:
    found = {name: get(tree, key, AUTO) for key, name in ARGUMENT_OF.items()}
    betas = get(tree, "optimizer.params.betas", AUTO)
    if isinstance(betas, list) and len(betas) == 2:
        found |= {"adam_beta1": betas[0], "adam_beta2": betas[1]}
    return {name: value for name, value in found.items() if value != AUTO and value is not None}


_FILLED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")


def _for_trainer(tree: Tree) -> Tree:
    """Return a DeepSpeed configuration whose batch the arguments decide."""
    kept = {name: value for name, value in tree.items() if name not in (*_FILLED, "steps_per_print")}
    return without_nulls({**dict.fromkeys(_FILLED, AUTO), **kept, ZERO: block(tree, ZERO) or {"stage": 0}})


def _given_arguments(found: Explanation) -> Tree | None:
    source = found.sources.of(FileKind.TRAINING_ARGS)
    return found.explained[source.name].tree if source and source.name in found.explained else None


def plan_tree(settings: Settings) -> Tree:
    """Return the job and the plan as a case of ``scaling estimate --cases`` has them, without model and cluster."""
    job: dict[str, Any] = {
        "global_batch_size": settings.global_batch_size,
        "precision": settings.precision,
        "optimizer": settings.optimizer,
        "gradient_clipping": settings.gradient_clipping,
    }
    plan: dict[str, Any] = {
        "strategy": settings.strategy,
        "micro_batch_size": settings.micro_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "activation_checkpointing": settings.activation_checkpointing,
        "offload_optimizer": settings.offload_optimizer,
        "offload_param": settings.offload_param,
        "reshard_after_forward": settings.reshard_after_forward,
        **settings.buckets,
    }
    return {"job": _given(job), "plan": _given(plan)}


def _given(values: Tree) -> Tree:
    return {name: plain(value) for name, value in values.items() if value is not None}
