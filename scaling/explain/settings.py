"""What the files of a run ask for, in the words of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scaling.explain.accelerate_rules import is_on
from scaling.explain.batch import batch_of
from scaling.explain.explanation import Explanation
from scaling.explain.key_table import shipped_table
from scaling.explain.sources import FileKind
from scaling.explain.trainer import with_defaults
from scaling.explain.tree import Tree, block, get, is_true, whole
from strategies.errors import ScalingError
from strategies.job import OptimizerName, Precision
from strategies.plan import ActivationCheckpointing, Buckets, OffloadDevice, StrategyName

ZERO = "zero_optimization"
STAGES = {0: StrategyName.DDP, 1: StrategyName.ZERO1, 2: StrategyName.ZERO2, 3: StrategyName.ZERO3}
OPTIMIZERS = {
    "adam": OptimizerName.ADAMW,
    "adamw": OptimizerName.ADAMW,
    "sgd": OptimizerName.SGD,
    "lion": OptimizerName.LION,
    "adafactor": OptimizerName.ADAFACTOR,
}
TRAINER_OPTIMIZERS = {
    "adafactor": OptimizerName.ADAFACTOR,
    "sgd": OptimizerName.SGD,
    "adamw_8bit": OptimizerName.ADAMW_8BIT,
    "adamw_bnb_8bit": OptimizerName.ADAMW_8BIT,
    "paged_adamw_8bit": OptimizerName.ADAMW_8BIT,
    "lion_32bit": OptimizerName.LION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What files ask for; None where they do not say."""

    world_size: int | None = None
    strategy: StrategyName
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    global_batch_size: int | None = None
    precision: Precision | None = None
    optimizer: OptimizerName | None = None
    gradient_clipping: float | None = None
    activation_checkpointing: ActivationCheckpointing | None = None
    offload_optimizer: OffloadDevice = OffloadDevice.NONE
    offload_param: OffloadDevice = OffloadDevice.NONE
    reshard_after_forward: bool = True
    buckets: dict[str, int | bool]
    """Those of `Buckets` that are given."""
    deepspeed: Tree | None = None
    """The configuration that DeepSpeed gets, where it is used."""
    wrapping: Tree | None = None
    """Of FSDP, what `WRAPPING` has and is given, without ``fsdp_`` before it."""
    left_out: tuple[str, ...] = ()
    """What has no word in a plan."""


WRAPPING = ("auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "state_dict_type")
"""Keys of FSDP that accelerate and the Trainer both have, and a plan has not."""
NOT_KEPT = (None, "", "LOCAL_STATE_DICT")
"""Values of those that say nothing, or that FSDP 2 does not have."""


def settings_of(found: Explanation) -> Settings:
    """Return what the files ask for.

    Raises:
        ScalingError: they name a DeepSpeed file that is not there, or ask for Megatron-LM, whose kinds of parallelism
            nothing else here has.
    """
    arguments = _arguments(found)
    if found.deepspeed is not None:
        return _of_deepspeed(found, found.deepspeed, arguments)
    yaml = found.sources.of(FileKind.ACCELERATE)
    tree = found.explained[yaml.name].tree if yaml and yaml.name in found.explained else {}
    for each in found.sources.missing:
        if each.key == "deepspeed" or tree.get("distributed_type") == "DEEPSPEED":
            raise ScalingError(
                f"{each.named_by}: {each.key} names {each.name}, which is not found, so that nothing is known of ZeRO; "
                f"give it as a second FILE"
            )
    if yaml and tree.get("distributed_type") == "MEGATRON_LM":
        raise ScalingError(
            f"{yaml.name}: distributed_type is MEGATRON_LM, whose tensor and pipeline parallelism no plan and no other "
            f"file has a word for; take FSDP or DEEPSPEED as distributed_type to have it converted or estimated"
        )
    return _without_deepspeed(found, tree, arguments)


def _arguments(found: Explanation) -> Tree | None:
    source = found.sources.of(FileKind.TRAINING_ARGS)
    if source is None or source.name not in found.explained:
        return None
    return with_defaults(found.explained[source.name].tree, shipped_table("transformers"))


def _of_deepspeed(found: Explanation, tree: Tree, arguments: Tree | None) -> Settings:
    batch = batch_of(tree)
    zero = block(tree, ZERO)
    name = str(get(tree, "optimizer.type", "")).lower()
    return Settings(
        world_size=found.world_size,
        strategy=STAGES.get(whole(zero.get("stage", 0)) or 0, StrategyName.DDP),
        micro_batch_size=batch.micro,
        gradient_accumulation_steps=batch.steps,
        global_batch_size=batch.total,
        precision=_deepspeed_precision(tree),
        optimizer=OPTIMIZERS.get(name) or _trainer_optimizer(arguments),
        gradient_clipping=_number(tree.get("gradient_clipping", 1.0)),
        activation_checkpointing=_checkpointing(arguments),
        offload_optimizer=_device(zero, "offload_optimizer"),
        offload_param=_device(zero, "offload_param"),
        buckets=_buckets(zero),
        deepspeed=tree,
        left_out=tuple(key for key in _WITHOUT_WORD if is_true(get(tree, key, False)) or block(tree, key)),
    )


_WITHOUT_WORD = (
    f"{ZERO}.zero_quantized_weights",
    f"{ZERO}.zero_quantized_gradients",
    f"{ZERO}.zenflow",
    "tensor_parallel",
    "expert_parallel",
    "data_efficiency",
    "compile",
    "weight_quantization",
    "autotuning",
)


def _deepspeed_precision(tree: Tree) -> Precision | None:
    enabled = {name: get(tree, f"{name}.enabled", False) for name in ("fp16", "bf16")}
    if "auto" in enabled.values():
        return None
    if is_true(enabled["bf16"]):
        pure = is_true(get(tree, "bf16.bf16_optimizer_states", False))
        return Precision.BF16_PURE if pure else Precision.BF16
    if is_true(enabled["fp16"]):
        return Precision.FP16
    if is_true(get(tree, "torch_autocast.enabled", False)):
        is_fp16 = "16" in str(get(tree, "torch_autocast.dtype", "")) and "b" not in str(
            get(tree, "torch_autocast.dtype", "")
        )
        return Precision.FP16_AUTOCAST if is_fp16 else Precision.BF16_AUTOCAST
    return Precision.FP32


def _device(zero: Tree, name: str) -> OffloadDevice:
    found = str(get(zero, f"{name}.device", "none")).lower()
    return OffloadDevice(found) if found in tuple(OffloadDevice) else OffloadDevice.NONE


NAMES = {
    "reduce_bucket_size": ("reduce_bucket_size",),
    "allgather_bucket_size": ("allgather_bucket_size",),
    "stage3_prefetch_bucket_size": ("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
    "stage3_param_persistence_threshold": ("stage3_param_persistence_threshold", "param_persistence_threshold"),
    "stage3_max_live_parameters": ("stage3_max_live_parameters", "max_live_parameters"),
}
DEEPSPEED_BUCKETS = {
    "reduce_bucket_size": 5 * 10**8,
    "allgather_bucket_size": 5 * 10**8,
    "stage3_prefetch_bucket_size": 5 * 10**7,
    "stage3_param_persistence_threshold": 10**5,
    "stage3_max_live_parameters": 10**9,
}
"""deepspeed 0.19.8, runtime/zero/config.py: what is not given is not sized to the model, as a plan's is."""


def _buckets(zero: Tree) -> dict[str, int | bool]:
    found: dict[str, int | bool] = {}
    for name, names in NAMES.items():
        given = next((zero[each] for each in names if each in zero), None)
        if given != "auto":  # sized to the model, as a plan's are
            size = whole(given)
            found[name] = size if size is not None and size > 0 else DEEPSPEED_BUCKETS[name]
    overlap = zero.get("overlap_comm")
    found["overlap_comm"] = overlap if isinstance(overlap, bool) else whole(zero.get("stage")) == 3
    assert set(found) <= set(Buckets.__slots__)
    return found


def _trainer_optimizer(arguments: Tree | None) -> OptimizerName | None:
    if arguments is None:
        return None
    name = str(arguments.get("optim", ""))
    return TRAINER_OPTIMIZERS.get(name) or (OptimizerName.ADAMW if name.startswith("adamw") else None)


def _checkpointing(arguments: Tree | None) -> ActivationCheckpointing | None:
    if arguments is None:
        return None
    is_full = any(
        is_true(arguments.get(name) or False) for name in ("gradient_checkpointing", "activation_checkpointing")
    )
    return ActivationCheckpointing.FULL if is_full else ActivationCheckpointing.NONE


def _without_deepspeed(found: Explanation, yaml: Tree, arguments: Tree | None) -> Settings:
    fsdp = _fsdp(yaml, arguments)
    micro, steps = _sizes(arguments)
    shards = fsdp is not None and _sharding(fsdp) != "NO_SHARD"
    total = micro * steps * found.world_size if micro and steps and found.world_size else None
    return Settings(
        world_size=found.world_size,
        strategy=StrategyName.FSDP2 if shards else StrategyName.DDP,
        micro_batch_size=micro,
        gradient_accumulation_steps=steps,
        global_batch_size=total,
        precision=_autocast_precision(yaml, arguments),
        optimizer=_trainer_optimizer(arguments),
        gradient_clipping=_number(arguments.get("max_grad_norm")) if arguments else None,
        activation_checkpointing=_fsdp_checkpointing(fsdp, arguments),
        offload_param=OffloadDevice.CPU
        if shards and _is_on(fsdp, "offload_params", "cpu_offload")
        else OffloadDevice.NONE,
        reshard_after_forward=fsdp is None or _sharding(fsdp) not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"),
        buckets={},
        wrapping={name: fsdp[name] for name in WRAPPING if fsdp.get(name) not in NOT_KEPT} if fsdp else None,
        left_out=tuple(_without_word(yaml, arguments, fsdp)),
    )


def _without_word(yaml: Tree, arguments: Tree | None, fsdp: Tree | None) -> Iterator[str]:
    if fsdp is not None and "HYBRID" in _sharding(fsdp):
        yield "fsdp_sharding_strategy=HYBRID"
    if arguments is not None and isinstance(name := arguments.get("fsdp_config"), str):
        yield f"fsdp_config={name}"
    if yaml.get("mixed_precision") == "fp8":
        yield "mixed_precision=fp8"
    for name, size in block(yaml, "parallelism_config").items():
        if name.endswith("_size") and (whole(size) or 1) > 1 and "dp_shard" not in name:
            yield f"{name}={size}"


def _sizes(arguments: Tree | None) -> tuple[int | None, int | None]:
    if arguments is None:
        return None, None
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    micro, steps = (whole(arguments.get(name)) for name in names)
    return micro, steps


def _fsdp(yaml: Tree, arguments: Tree | None) -> Tree | None:
    """Return the FSDP block in use, its keys without ``fsdp_``; None where it is not used."""
    if yaml.get("distributed_type") == "FSDP":
        given = block(yaml, "fsdp_config")
    elif arguments is not None and arguments.get("fsdp"):
        given = {"version": 2, **block(arguments, "fsdp_config")}
        words = str(arguments["fsdp"]).lower()
        named = [word for word in ("shard_grad_op", "no_shard", "hybrid_shard") if word in words]
        given |= {"sharding_strategy": named[0]} if named else {}
        given |= {"cpu_offload": True} if "offload" in words else {}
    else:
        return None
    return {name.removeprefix("fsdp_"): value for name, value in given.items()}


def _sharding(fsdp: Tree) -> str:
    if whole(fsdp.get("version", 1)) == 2 and "sharding_strategy" not in fsdp:
        return "FULL_SHARD" if is_on(fsdp.get("reshard_after_forward"), True) else "SHARD_GRAD_OP"
    from scaling.explain.accelerate_engine_rules import STRATEGIES

    given = fsdp.get("sharding_strategy", "FULL_SHARD")
    number = whole(given)
    return STRATEGIES[number - 1] if number and 1 <= number <= len(STRATEGIES) else str(given).upper()


def _is_on(fsdp: Tree | None, *names: str) -> bool:
    return fsdp is not None and any(is_on(fsdp.get(name), False) for name in names)


def _fsdp_checkpointing(fsdp: Tree | None, arguments: Tree | None) -> ActivationCheckpointing | None:
    if _is_on(fsdp, "activation_checkpointing"):
        return ActivationCheckpointing.FULL
    return _checkpointing(arguments)


def _autocast_precision(yaml: Tree, arguments: Tree | None) -> Precision | None:
    told: Any = yaml.get("mixed_precision")
    if arguments is not None and (is_true(arguments.get("bf16") or False) or is_true(arguments.get("fp16") or False)):
        told = "bf16" if is_true(arguments.get("bf16") or False) else "fp16"
    if told in ("bf16", "fp16"):
        return Precision.BF16_AUTOCAST if told == "bf16" else Precision.FP16_AUTOCAST
    return Precision.FP32 if told == "no" or arguments is not None else None


def _number(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e30 else None
    )
