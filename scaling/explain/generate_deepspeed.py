"""The rows of DeepSpeed's key table: pydantic models where it has them, its constants where it reads by hand."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Iterator
from typing import Any

from scaling.explain.generate import Row, json_value, kind_of

MODELS = {
    "zero_optimization": "runtime.zero.config:DeepSpeedZeroConfig",
    "fp16": "runtime.precision_config:DeepSpeedFP16Config",
    "bf16": "runtime.precision_config:DeepSpeedBF16Config",
    "tensorboard": "monitor.config:TensorBoardConfig",
    "wandb": "monitor.config:WandbConfig",
    "csv_monitor": "monitor.config:CSVConfig",
    "comet": "monitor.config:CometConfig",
    "comms_logger": "comm.config:CommsLoggerConfig",
    "compile": "compile.config:CompileConfig",
    "hybrid_engine": "runtime.config:HybridEngineConfig",
    "tensor_parallel": "runtime.tensor_parallel.config:TPTrainingConfig",
    "timers.throughput": "utils.config:DeepSpeedThroughputTimerConfig",
    "weight_quantization": "inference.config:WeightQuantConfig",
}
"""Blocks with a model of their own: an unknown key in them is an error."""
CONSTANTS = {
    "": (
        "runtime.constants",
        "TRAIN_BATCH_SIZE TRAIN_MICRO_BATCH_SIZE_PER_GPU GRADIENT_ACCUMULATION_STEPS MANAGED_GRADIENT_ACCUMULATION "
        "STEPS_PER_PRINT DUMP_STATE DISABLE_PYTHON_GC DISABLE_ALLGATHER COMMUNICATION_DATA_TYPE "
        "SEQ_PARALLEL_COMMUNICATION_DATA_TYPE PRESCALE_GRADIENTS GRADIENT_PREDIVIDE_FACTOR GRADIENT_ALLREDUCE_OP "
        "GRADIENT_CLIPPING ZERO_ALLOW_UNTESTED_OPTIMIZER ZERO_FORCE_DS_CPU_OPTIMIZER WALL_CLOCK_BREAKDOWN "
        "MEMORY_BREAKDOWN DATALOADER_DROP_LAST USE_DATA_BEFORE_EXPERT_PARALLEL VOCABULARY_SIZE LOG_LEVEL",
    ),
    "aio": ("runtime.swap_tensor.constants", "AIO"),
    "activation_checkpointing": ("runtime.activation_checkpointing.config", "ACT_CHKPT"),
    "flops_profiler": ("profiling.constants", "FLOPS_PROFILER"),
    "autotuning": ("autotuning.constants", "AUTOTUNING"),
    "data_types": ("runtime.constants", "GRAD_ACCUM_DTYPE PARAM_DTYPE BUFFER_DTYPE KEEP_IN_FP32_MODULES"),
    "torch_autocast": (
        "runtime.constants",
        "TORCH_AUTOCAST_ENABLED TORCH_AUTOCAST_DTYPE TORCH_AUTOCAST_LOWER_PRECISION_SAFE_MODULES",
    ),
    "checkpoint": (
        "runtime.constants",
        "CHECKPOINT_TAG_VALIDATION LOAD_UNIVERSAL_CHECKPOINT USE_NODE_LOCAL_STORAGE_CHECKPOINT",
    ),
}
"""Blocks read key by key: the module of the constants, and their names or their common prefix."""
KINDS = {
    "train_batch_size": "int",
    "train_micro_batch_size_per_gpu": "int",
    "gradient_accumulation_steps": "int",
    "steps_per_print": "int|float",
    "communication_data_type": "str",
    "seq_parallel_communication_data_type": "str",
    "vocabulary_size": "int",
    "log_level": "str",
    "activation_checkpointing.number_checkpoints": "int",
    "data_types.keep_in_fp32_modules": "list|str",
    "torch_autocast.lower_precision_safe_modules": "list",
    "autotuning.arg_mappings": "dict",
    "flops_profiler.output_file": "str",
}
"""Where the default, being none, does not tell."""
CHOICES: dict[str, list[Any]] = {
    "communication_data_type": ["fp32", "fp16", "bf16"],
    "seq_parallel_communication_data_type": ["fp32", "fp16", "bf16"],
    "gradient_allreduce_op": ["mean", "sum"],
    "data_types.grad_accum_dtype": ["fp32", "fp16", "bf16"],
    "torch_autocast.dtype": [
        *(f"{prefix}{name}" for prefix in ("", "torch.") for name in ("bfloat16", "float16", "float32", "int8")),
        *("bf16", "fp16", "half", "fp32", "float"),
    ],
}
BY_HAND: tuple[Row, ...] = (
    {"path": "optimizer", "kind": "block"},
    {"path": "optimizer.type", "kind": "str"},
    {"path": "optimizer.params", "kind": "dict"},
    {"path": "optimizer.legacy_fusion", "kind": "bool", "default": False},
    {"path": "scheduler", "kind": "block"},
    {"path": "scheduler.type", "kind": "str"},
    {"path": "scheduler.params", "kind": "dict"},
    {"path": "timers", "kind": "block"},
    {"path": "pipeline", "kind": "dict"},
    {"path": "data_efficiency", "kind": "dict"},
    {"path": "datastates_ckpt", "kind": "dict|bool"},
    {"path": "checkpoint.parallel_write", "kind": "dict"},
    {"path": "checkpoint.writer", "kind": "dict"},
    {"path": "checkpoint.checkpoint_serialization", "kind": "bool", "default": True},
    {"path": "autotuning.model_info", "kind": "dict"},
    {"path": "bfloat16", "kind": "dict", "deprecated_for": "bf16"},
    {"path": "sequence_parallel_size", "kind": "int"},
    {"path": "allgather_size", "kind": "int", "deprecated_for": "zero_optimization.allgather_bucket_size"},
    {"path": "msamp", "kind": "dict"},
)
"""Sources: runtime/config.py (get_optimizer_name, get_scheduler_name, get_pipeline_config, DeepSpeedConfig.__init__),
runtime/model_checkpointing/constants.py, runtime/data_pipeline/config.py; ``msamp`` is written by accelerate."""


_LEAVES = "zero_optimization.leaf_module"
_ZENFLOW = "zero_optimization.zenflow"
BY_VALIDATOR: dict[str, Row] = {
    "fp16.loss_scale": {"at_least": 0},
    f"{_ZENFLOW}.select_strategy": {"choices": ["auto", "step", "epoch"]},
    f"{_ZENFLOW}.select_interval": {"choices": ["auto"]},
    f"{_ZENFLOW}.update_interval": {"choices": ["auto"], "at_least": 1},
    **{f"{_LEAVES}.{name}": {"kind": "list of text|str"} for name in ("classes", "names", "name_suffixes")},
}
"""What a model checks and converts in code (runtime/precision_config.py, zenflow/zenflow_config.py and
zero/leaf_module_config.py)."""
NULL_IS_EMPTY = (_LEAVES,)


def rows() -> Iterator[Row]:
    """Yield every key of the installed DeepSpeed."""
    for block, model in MODELS.items():
        kind = "block|bool" if block == "zero_optimization" else "block"
        yield {"path": block, "kind": kind, "default": None, "nullable": block == "bf16"}
        yield from _model_rows(_attribute(model), block)
    for block, (module, names) in CONSTANTS.items():
        if block:
            yield {"path": block, "kind": "block", "default": None}
        yield from _constant_rows(block, importlib.import_module(f"deepspeed.{module}"), names)
    yield from ({"default": None, **row} for row in BY_HAND)
    yield from _expert_parallel_rows()


def strict_blocks() -> list[str]:
    """Return the blocks that refuse unknown keys."""
    nested = (path for block, model in MODELS.items() for path in _nested(_attribute(model), block))
    return [*MODELS, *nested]


def removed_keys() -> dict[str, str]:
    """Return the keys that the reader refuses as removed, with its words; none in versions without such a list."""
    module = importlib.import_module("deepspeed.runtime.config")
    top = dict(getattr(module, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", {}))
    zero = getattr(module, "_REMOVED_ZERO_CONFIG_KEYS", {})
    return top | {f"zero_optimization.{name}": words for name, words in zero.items()}


def _attribute(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"deepspeed.{module}"), attribute)


def _model_in(annotation: Any) -> Any:
    """Return the pydantic model in an annotation, None where there is none."""
    for each in (annotation, *typing.get_args(annotation)):
        if isinstance(each, type) and hasattr(each, "model_fields"):
            return each
    return None


def _nested(model: Any, block: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if (inner := _model_in(field.annotation)) is not None:
            path = f"{block}.{field.alias or name}"
            yield path
            yield from _nested(inner, path)


def _model_rows(model: Any, block: str) -> Iterator[Row]:
    for name, field in model.model_fields.items():
        path = f"{block}.{field.alias or name}"
        if getattr(field.annotation, "__module__", "") == "torch":
            continue  # a torch.dtype: no file can hold one
        names = [name] if field.alias else []
        kind, nullable, choices = kind_of(field.annotation)
        row: Row = {
            "path": path,
            "kind": kind,
            "nullable": nullable,
            "choices": _without_limits(choices),
            "names": names,
        }
        if (inner := _model_in(field.annotation)) is not None:
            yield {**row, "kind": "block", "default": None, "nullable": nullable or path in NULL_IS_EMPTY}
            yield from _model_rows(inner, path)
            continue
        extra = field.json_schema_extra or {}
        if extra.get("deprecated"):
            row["deprecated_for"] = _in_block(block, extra.get("new_param", ""))
        default = None if field.default is ... or field.is_required() else field.get_default(call_default_factory=True)
        yield {**row, "default": json_value(default), **_bounds(field), **BY_VALIDATOR.get(path, {})}


def _in_block(block: str, names: str) -> str:
    return " or ".join(f"{block}.{name}" for name in names.split(" or ") if name)


def _without_limits(choices: list[Any]) -> list[Any]:
    return [int(each) if isinstance(each, int) and not isinstance(each, bool) else each for each in choices]


def _bounds(field: Any) -> Row:
    names = {"ge": "at_least", "gt": "above", "le": "at_most", "lt": "below"}
    found: Row = {}
    for each in field.metadata:
        found |= {ours: getattr(each, theirs) for theirs, ours in names.items() if hasattr(each, theirs)}
    return found


def _constant_rows(block: str, module: Any, names: str) -> Iterator[Row]:
    wanted = names.split()
    if len(wanted) == 1 and wanted[0] in ("AIO", "ACT_CHKPT", "FLOPS_PROFILER", "AUTOTUNING"):
        prefix = f"{wanted[0]}_"
        wanted = [each for each in vars(module) if each.startswith(prefix) and f"{each}_DEFAULT" in vars(module)]
    for constant in wanted:
        name = getattr(module, constant)
        path = f"{block}.{name}" if block else name
        default = json_value(getattr(module, f"{constant}_DEFAULT", None))
        kind = KINDS.get(path) or kind_of(type(default))[0] if default is not None else KINDS.get(path, "any")
        yield {"path": path, "kind": kind, "default": default, "nullable": True, "choices": CHOICES.get(path, [])}


def _expert_parallel_rows() -> Iterator[Row]:
    """Yield the keys of automatic expert parallelism, which are the fields of a dataclass."""
    try:
        fields = dataclasses.fields(_attribute("module_inject.auto_ep_config:AutoEPConfig"))
    except (ImportError, AttributeError):  # versions without it
        return
    yield {"path": "expert_parallel", "kind": "block", "default": None}
    for field in fields:
        if field.init:
            default = None if field.default is dataclasses.MISSING else json_value(field.default)
            yield {"path": f"expert_parallel.{field.name}", "kind": "any", "default": default, "nullable": True}
