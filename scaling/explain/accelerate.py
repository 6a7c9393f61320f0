"""An accelerate configuration: what it says in the end, and the DeepSpeed configuration that its flat keys make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaling.explain.accelerate_engine_rules import ENGINE_RULES
from scaling.explain.accelerate_keys import PREFIXES, key_findings
from scaling.explain.accelerate_rules import KIND_RULES, AccelerateRun, names_file, rule_findings
from scaling.explain.deepspeed import Explained
from scaling.explain.findings import Finding
from scaling.explain.key_table import KeyTable
from scaling.explain.repair import as_meant, as_read
from scaling.explain.tree import Tree, block, leaves, whole
from scaling.explain.values import Origin, Value


def accelerate_run(
    tree: Tree, table: KeyTable, *, file: str, world_size: int | None, has_arguments: bool
) -> tuple[AccelerateRun, list[Finding]]:
    """Return an accelerate configuration as it is read, and what is wrong with its keys and types."""
    keys = key_findings(tree, table, file=file)
    read = as_read(tree, keys)
    size = world_size or processes_of(read)
    return AccelerateRun(tree=read, file=file, world_size=size, has_arguments=has_arguments), keys


def processes_of(tree: Tree) -> int | None:
    """Return the number of processes of an accelerate file, None where it is left to the command line."""
    count = whole(tree.get("num_processes"))
    return (
        count if count and count > 0 else 1 if tree.get("distributed_type") in ("NO", False) and count is None else None
    )


def explain_accelerate(run: AccelerateRun, keys: list[Finding], table: KeyTable) -> Explained:
    """Return an accelerate configuration resolved."""
    meant = replace(run, tree=as_meant(run.tree, keys))
    findings = [*keys, *rule_findings(meant, KIND_RULES), *rule_findings(meant, ENGINE_RULES)]
    values = [Value(key=path, value=value, origin=Origin.FILE, by=run.file) for path, value in leaves(run.tree)]
    return Explained(tree=run.tree, values=(*values, *_defaults(run, table)), findings=tuple(findings))


WHY = {
    "mixed_precision": "fp32 unless the program says otherwise",
    "deepspeed_config.zero_stage": "accelerate's own default",
    "deepspeed_config.gradient_clipping": "DeepSpeed clips at its own default, 1.0 since June 2026",
    "deepspeed_config.gradient_accumulation_steps": "the program's Accelerator(gradient_accumulation_steps) decides",
    "fsdp_config.fsdp_version": "FSDP 1; 2 is torch's fully_shard",
    "fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP: the whole model is gathered at once",
    "fsdp_config.fsdp_offload_params": "everything stays on the GPU",
    "fsdp_config.fsdp_cpu_ram_efficient_loading": "one process loads the weights, the others get them",
    "fsdp_config.fsdp_activation_checkpointing": "all activations are kept unless the program checkpoints",
    "rdzv_backend": "machines meet at main_process_ip",
}
"""Defaults that change results or memory and are easily missed."""


def _defaults(run: AccelerateRun, table: KeyTable) -> list[Value]:
    found = []
    for path, key in table.keys.items():
        inside = block(run.tree, key.block) if key.block else run.tree
        prefix = PREFIXES.get(key.block, "")
        given = key.name in inside or key.name.removeprefix(prefix) in inside
        if given or key.kind == "block" or key.deprecated_for or (key.block and not _is_used(run, key.block)):
            continue
        if key.block == "deepspeed_config" and names_file(run.deepspeed):
            continue
        default: Any = 2 if path == "deepspeed_config.zero_stage" else key.default
        why = WHY.get(path, "")
        found.append(Value(key=path, value=default, origin=Origin.DEFAULT, by=table.label, why=why))
    return found


def _is_used(run: AccelerateRun, name: str) -> bool:
    owners = {"deepspeed_config": "DEEPSPEED", "fsdp_config": "FSDP", "megatron_lm_config": "MEGATRON_LM"}
    return run.kind == owners[name] if name in owners else bool(block(run.tree, name))


def plugin_config(run: AccelerateRun, *, precision: str | None = None) -> Tree:
    """Return the DeepSpeed configuration that accelerate makes of the flat keys; ``precision``: one that comes before.

    An NVMe path is put where it was meant to be: accelerate itself loses it. Source: DeepSpeedPlugin.__post_init__ and
    set_mixed_precision.
    """
    flat = run.deepspeed
    zero: Tree = {"stage": run.stage}
    for name in ("optimizer", "param"):
        device = str(flat.get(f"offload_{name}_device", "none")).lower()
        path = flat.get(f"offload_{name}_nvme_path")
        zero[f"offload_{name}"] = {"device": device, "nvme_path": path if device == "nvme" else None}
    save = flat.get("zero3_save_16bit_model")
    zero["stage3_gather_16bit_weights_on_model_save"] = str(save).lower() == "true"
    config: Tree = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": _number(flat.get("gradient_accumulation_steps", "auto")),
        "zero_optimization": zero,
    }
    if clipping := flat.get("gradient_clipping", "auto"):
        config["gradient_clipping"] = _number(clipping)
    precision = precision or run.tree.get("mixed_precision")
    config["fp16"] = {"enabled": True, "auto_cast": True} if precision == "fp16" else {"enabled": False}
    config["bf16"] = {"enabled": precision in ("bf16", "fp8")}
    return config


def _number(value: Any) -> Any:
    """Return text that is a number as one: the environment, by which it travels, holds text only."""
    if not isinstance(value, str):
        return value
    if (number := whole(value)) is not None:
        return number
    try:
        return float(value)
    except ValueError:
        return value
