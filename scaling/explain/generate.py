"""Make the key tables from the installed packages: ``python -m scaling.explain.generate FOLDER``.

DeepSpeed's blocks come from its own pydantic models where it has them, else from its constants; accelerate's keys from
its ``ClusterConfig`` and the arguments of ``accelerate launch``, on which the file's keys are set; transformers' from
the fields of ``TrainingArguments``.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib.metadata
import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SIMPLE = {bool: "bool", int: "int", float: "float", str: "str", Path: "str", list: "list", dict: "dict", tuple: "list"}


def deepspeed_table() -> Row:
    """Return the table of the installed DeepSpeed."""
    from scaling.explain.generate_deepspeed import removed_keys, rows, strict_blocks

    return {**_table("deepspeed", list(rows()), strict=strict_blocks()), "removed": removed_keys()}


def _accelerate_words() -> dict[str, list[str]]:
    """Return the words that keys of accelerate take where their annotation does not tell."""
    from accelerate.utils import ComputeEnvironment, DistributedType, PrecisionType, constants

    return {
        "compute_environment": [each.value for each in ComputeEnvironment],
        "distributed_type": [each.value for each in DistributedType],
        "mixed_precision": [each.value for each in PrecisionType],
        "deepspeed_config.deepspeed_multinode_launcher": list(constants.DEEPSPEED_MULTINODE_LAUNCHERS),
        "fsdp_config.fsdp_auto_wrap_policy": list(constants.FSDP_AUTO_WRAP_POLICY),
        "fsdp_config.fsdp_backward_prefetch": [*constants.FSDP_BACKWARD_PREFETCH, "1", "2"],
        "fsdp_config.fsdp_state_dict_type": [*constants.FSDP_STATE_DICT_TYPE, "1", "2", "3"],
        "fsdp_config.fsdp_sharding_strategy": [*constants.FSDP_SHARDING_STRATEGY, *"12345"],
    }


def accelerate_table() -> Row:
    """Return the table of the installed accelerate: the file's own keys, and those of its blocks."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    hints = typing.get_type_hints(ClusterConfig)
    rows = []
    for each in dataclasses.fields(ClusterConfig):
        default = None if each.default is dataclasses.MISSING else each.default
        kind = "block" if each.name.endswith("_config") else None
        rows.append(_row(each.name, hints[each.name], default, kind=kind))
    rows.append({"path": "fp16", "kind": "bool", "default": None, "deprecated_for": "mixed_precision"})
    rows.append(
        {"path": "dynamo_backend", "kind": "str", "default": None, "deprecated_for": "dynamo_config.dynamo_backend"}
    )
    for action in launch_command_parser()._actions:
        rows.extend(_launch_rows(action))
    words = _accelerate_words()
    rows = [row | ({"kind": "str", "choices": words[row["path"]]} if row["path"] in words else {}) for row in rows]
    rows = [row | ({"at_least": 0, "at_most": 65535} if row["path"] == "main_process_port" else {}) for row in rows]
    return _table("accelerate", rows, strict=[""])


BLOCKS_OF_LAUNCH = {
    "fsdp_": "fsdp_config",
    "fp8_": "fp8_config",
    "dynamo_": "dynamo_config",
    "megatron_lm_": "megatron_lm_config",
    "parallelism_config_": "parallelism_config",
    "mpirun_": "mpirun_config",
}
FLAT_DEEPSPEED = (
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero3_init_flag",
    "zero3_save_16bit_model",
)


TEXT_FLAGS = ("zero3_init_flag", "zero3_save_16bit_model")
"""Of the launcher, without a default that tells."""


def _launch_rows(action: argparse.Action) -> Iterator[Row]:
    name = action.dest
    block = next((block for prefix, block in BLOCKS_OF_LAUNCH.items() if name.startswith(prefix)), None)
    if name in FLAT_DEEPSPEED or name.startswith("deepspeed_"):
        block = "deepspeed_config"
    if block is None or name == "dynamo_config":
        return
    is_flag = isinstance(action.default, bool) or action.default in ("true", "false") or name in TEXT_FLAGS
    kind = "bool" if is_flag else SIMPLE.get(action.type, "any") if isinstance(action.type, type) else "any"
    default = list(action.default) if isinstance(action.default, tuple) else action.default
    default = default == "true" if default in ("true", "false") else default
    row: Row = {"path": f"{block}.{name}", "kind": kind, "default": default, "nullable": True}
    if action.choices:
        row["choices"] = [str(each) for each in action.choices]
    yield row


def transformers_table() -> Row:
    """Return the table of the installed transformers: the arguments of its Trainer."""
    from transformers import TrainingArguments

    hints = typing.get_type_hints(TrainingArguments)
    fields = [each for each in dataclasses.fields(TrainingArguments) if each.init]
    rows = [_row(each.name, hints[each.name], _default(each), kind=WIDER.get(each.name)) for each in fields]
    return _table("transformers", rows, strict=[])


WIDER = {"fsdp": "bool|str|list", "ddp_bucket_cap_mb": "int|float"}
"""What TrainingArguments take beyond their annotations (_process_fsdp_args; torch takes fractions of MiB)."""


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def _table(package: str, rows: list[Row], *, strict: list[str]) -> Row:
    version = importlib.metadata.version(package)
    return {
        "package": package,
        "version": version,
        "source": f"python -m scaling.explain.generate, from {package} {version}",
        "strict": sorted(strict),
        "keys": sorted((_plain(row) for row in rows), key=lambda row: str(row["path"])),
    }


def _plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if name == "default" or not (value is False or value == [])}


def _row(path: str, annotation: Any, default: Any, *, kind: str | None = None) -> Row:
    found, nullable, choices = kind_of(annotation)
    return {
        "path": path,
        "kind": kind or found,
        "default": json_value(default),
        "nullable": nullable or default is None,
        "choices": choices,
    }


def kind_of(annotation: Any) -> tuple[str, bool, list[Any]]:
    """Return a type annotation as the kind of a key, whether None is allowed, and the words that it is limited to."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [kind_of(each) for each in typing.get_args(annotation) if each is not type(None)]
        limited = [part[2] for part in parts if part[2] or part[0] != "str"]
        choices = limited[0] if len(limited) == 1 else []  # an enumeration, or its words as text
        kinds = dict.fromkeys(kind for part in parts for kind in part[0].split("|"))
        return "|".join(kinds), type(None) in typing.get_args(annotation), choices
    if typing.get_origin(annotation) is typing.Literal:
        return "str", False, list(typing.get_args(annotation))
    plain = typing.get_origin(annotation) or annotation
    if plain is list and typing.get_args(annotation):
        inner, _, words = kind_of(typing.get_args(annotation)[0])
        return ("list of text" if inner == "str" else "list"), False, words
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        values = list(dict.fromkeys(each.value for each in plain))
        return SIMPLE.get(type(values[0]), "any"), False, values
    return SIMPLE.get(plain, "any"), False, []


def json_value(value: Any) -> Any:
    """Return a default as JSON holds it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    return {} if isinstance(value, dict) else None


TABLES = {"deepspeed": deepspeed_table, "accelerate": accelerate_table, "transformers": transformers_table}


def main(folder: Path, packages: list[str]) -> None:
    """Write the tables of ``packages`` to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages or list(TABLES):
        (folder / f"{package}.json").write_text(json.dumps(TABLES[package](), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
