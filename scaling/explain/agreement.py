"""Where TrainingArguments and the DeepSpeed settings beside them disagree: the Trainer demands the same, or "auto".

Source: transformers 5.24.0, integrations/deepspeed.py, HfTrainerDeepSpeedConfig.trainer_config_process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scaling.explain.auto_values import TRAINER_NAMES
from scaling.explain.batch import MICRO, STEPS, TOTAL
from scaling.explain.findings import Finding, Severity, Topic, setting
from scaling.explain.key_table import KeyTable
from scaling.explain.trainer import with_defaults
from scaling.explain.tree import AUTO, Tree, get, is_true, shown, whole


def disagreements(
    arguments: Tree, given: Tree, table: KeyTable, *, file: str, world_size: int | None, arguments_file: str | None
) -> Iterator[Finding]:
    """Yield where a DeepSpeed configuration has another value than the arguments.

    An argument that is not given is to be given in ``arguments_file``, where that is another file: what stands
    somewhere comes before a default.
    """
    full = with_defaults(arguments, table)
    for key, name in TRAINER_NAMES.items():
        theirs, ours = full.get(name), get(given, key, None)
        if name in ("fp16", "bf16"):
            theirs = is_true(theirs or False) or is_true(full.get(f"{name}_full_eval") or False)
        for each in _disagreement(given, key, f"{name}={shown(theirs)}", theirs, file):
            if arguments_file and name not in arguments and isinstance(ours, int | float):
                message = f"{name} is not given and so {shown(theirs)}, but {key}={shown(ours)} in {file}"
                yield _clash(arguments_file, name, f"{message}: the Trainer stops", f"give {name}: {shown(ours)}", ours)
            else:
                yield each
    betas = [full.get("adam_beta1"), full.get("adam_beta2")]
    yield from _disagreement(given, "optimizer.params.betas", f"adam_beta1, adam_beta2={betas}", betas, file)
    sizes = [whole(full.get(TRAINER_NAMES[name])) for name in (MICRO, STEPS)]
    if world_size and all(sizes):
        total = world_size * (sizes[0] or 0) * (sizes[1] or 0)
        yield from _disagreement(given, TOTAL, f"{world_size} ranks x {sizes[0]} x {sizes[1]} = {total}", total, file)


def precision_of(arguments: Tree | None) -> str | None:
    """Return the precision that TrainingArguments ask for, which comes before that of a YAML; None where none."""
    given = arguments or {}
    return next((name for name in ("fp16", "bf16") if is_true(given.get(name) or False)), None)


FLAT_NAMES = {name: f"deepspeed_config.{name}" for name in (STEPS, "gradient_clipping")}


def flat_disagreements(
    arguments: Tree, made: Tree, table: KeyTable, *, file: str, arguments_file: str
) -> Iterator[Finding]:
    """Yield where the flat keys of a YAML, which became ``made``, have another value than the arguments."""
    for each in disagreements(arguments, made, table, file=file, world_size=None, arguments_file=arguments_file):
        if (key := FLAT_NAMES.get(each.key)) is not None and each.file == file:
            fix, repairs = "write auto in the YAML", (setting(key, AUTO),)
            yield replace(each, key=key, message=f"deepspeed_config.{each.message}", fix=fix, repairs=repairs)
        elif each.key in ("fp16.enabled", "bf16.enabled"):
            name = each.key.partition(".")[0]
            message = f"{name} is off here, but mixed_precision in {file} is {name}: the Trainer stops"
            yield _clash(arguments_file, name, message, f"set {name}: true", True)
        else:
            yield each


def _disagreement(given: Tree, key: str, told: str, theirs: Any, file: str) -> Iterator[Finding]:
    ours = get(given, key, None)
    if ours is None or ours in (AUTO, theirs):
        return
    message = f"{key}={shown(ours)}, but the TrainingArguments say {told}: the Trainer stops"
    yield _clash(file, key, message, 'write "auto" in the DeepSpeed file', AUTO)


def _clash(file: str, key: str, message: str, fix: str, value: Any) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        topic=Topic.CONTRADICTION,
        file=file,
        key=key,
        message=message,
        fix=fix,
        repairs=(setting(key, value),),
    )
