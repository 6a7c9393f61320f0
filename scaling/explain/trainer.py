"""TrainingArguments in a file: what they say in the end, and where they and a DeepSpeed JSON disagree.

Sources: transformers 5.24.0, training_args.py, hf_argparser.py and integrations/deepspeed.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scaling.explain.auto_values import TRAINER_NAMES
from scaling.explain.batch import MICRO, STEPS
from scaling.explain.deepspeed import Explained
from scaling.explain.findings import Finding, Repair, Severity, Topic, removing, renaming, setting
from scaling.explain.history import TRAINER_REMOVED, TRAINER_RENAMED
from scaling.explain.key_table import Key, KeyTable, nearest
from scaling.explain.reading import Syntax
from scaling.explain.repair import as_meant, as_read
from scaling.explain.trainer_fsdp import fsdp_findings
from scaling.explain.tree import AUTO, MISSING, Tree, is_true, shown, whole
from scaling.explain.value_types import Fit, judge
from scaling.explain.values import Origin, Value

SURE = 0.88
"""How alike an argument must be to one that is known: scripts have arguments of their own in the same file."""


def explain_arguments(tree: Tree, table: KeyTable, *, file: str, syntax: Syntax, world_size: int | None) -> Explained:
    """Return TrainingArguments resolved."""
    keys = [*_key_findings(tree, table, file, syntax)]
    read, meant = as_read(tree, keys), as_meant(tree, keys)
    return Explained(
        tree=read,
        values=tuple(_values(read, table, file, world_size)),
        findings=(*keys, *_clashes(meant, file), *fsdp_findings(meant, file)),
    )


def with_defaults(tree: Tree, table: KeyTable) -> Tree:
    """Return the arguments with the defaults of those that are not given."""
    return {path: key.default for path, key in table.keys.items()} | tree


def _key_findings(tree: Tree, table: KeyTable, file: str, syntax: Syntax) -> Iterator[Finding]:
    others = []
    for name, value in tree.items():
        if (key := table.keys.get(name)) is not None:
            yield from _typed(name, value, key, file, syntax)
        elif name in TRAINER_RENAMED or name in TRAINER_REMOVED:
            yield _former(name, tree, table, file)
        elif (near := nearest(name, table.keys, cutoff=SURE)) and near not in tree:
            message = f"{name} is no argument of {table.label}, the nearest is {near}"
            yield _finding(
                Severity.ERROR, Topic.UNKNOWN_KEY, file, name, message, f"write {near}", renaming(name, near)
            )
        else:
            others.append(name)
    if others:
        more = f" and {len(others) - 12} more" if len(others) > 12 else ""
        message = f"{len(others)} that are no TrainingArguments: {', '.join(others[:12])}{more}"
        fix = "right where your script reads them; TrainingArguments(**...) itself refuses them"
        yield _finding(Severity.NOTE, Topic.HINT, file, ", ".join(others[:12]), message, fix)


def _former(name: str, tree: Tree, table: KeyTable, file: str) -> Finding:
    new = TRAINER_RENAMED.get(name)
    if new and new not in tree:
        message, fix = f"{name} is a former name, {table.label} refuses it", f"write {new}"
        return _finding(Severity.ERROR, Topic.VERSION, file, name, message, fix, renaming(name, new))
    instead = new or TRAINER_REMOVED[name]
    message = f"{name} is of earlier versions, {table.label} refuses it (now: {instead})"
    return _finding(Severity.ERROR, Topic.VERSION, file, name, message, f"take {name} out", removing(name))


def _typed(name: str, value: Any, key: Key, file: str, syntax: Syntax) -> Iterator[Finding]:
    if value is None and (key.choices or name in NULL_STOPS) and not key.nullable:
        message = f"{name} is empty, which TrainingArguments do not take"
        yield _finding(Severity.ERROR, Topic.WRONG_TYPE, file, name, message, f"take {name} out", removing(name))
    if value is None or value == AUTO:
        return
    if value is False and "no" in key.choices:
        message = f"{name}: no without quotes is false in YAML 1.1, it should be one of {', '.join(key.choices)}"
        repair = setting(name, "no")
        yield _finding(Severity.ERROR, Topic.WRONG_TYPE, file, name, message, "write 'no' with quotes", repair)
        return
    judged = judge(value, key)
    if judged.fit is Fit.RIGHT or (key.nullable and value in ("", "none", "None")):
        return
    if judged.fit is Fit.CONVERTED and isinstance(value, int) and not isinstance(value, bool) and key.kind == "bool":
        topic, severity = Topic.ACCEPTED_TYPE, Severity.WARNING
    else:
        topic, severity = Topic.WRONG_TYPE, Severity.ERROR
    message = f"{name}={shown(value)} should be {judged.wanted}"
    if syntax is Syntax.YAML and isinstance(value, str) and judged.fit is Fit.CONVERTED and "e" in value.lower():
        message += f": YAML 1.1 takes {value} for text, a number has a point and a sign ({_as_yaml(float(value))})"
    repairs = () if judged.better is MISSING else (setting(name, judged.better),)
    better = _in_file(judged.better, syntax)
    fix = f"write {better}" if repairs else f"give {judged.wanted}"
    yield _finding(severity, topic, file, name, message, fix, *repairs)


NULL_STOPS = ("dataloader_num_workers", "logging_steps", "save_steps", "warmup_steps")
"""Numbers that are compared at once; elsewhere an empty value counts as off."""


def _in_file(value: Any, syntax: Syntax) -> str:
    """Return a value as it has to be written: what JSON writes for a small number is text in YAML 1.1."""
    is_power = syntax is Syntax.YAML and isinstance(value, float) and "e" in shown(value)
    return _as_yaml(value) if is_power else shown(value)


def _as_yaml(number: float) -> str:
    mantissa, _, exponent = f"{number:e}".partition("e")
    digits = mantissa.rstrip("0")
    return f"{digits}0e{exponent}" if digits.endswith(".") else f"{digits}e{exponent}"


def _clashes(tree: Tree, file: str) -> Iterator[Finding]:
    for first, second in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if is_true(tree.get(first, False)) and is_true(tree.get(second, False)):
            message, fix = f"{first} and {second} are both on: TrainingArguments stop", f"keep {second}: {first}=false"
            yield _finding(
                Severity.ERROR, Topic.CONTRADICTION, file, f"{first}, {second}", message, fix, setting(first, False)
            )
    if tree.get("fsdp") and tree.get("deepspeed"):
        message = "fsdp and deepspeed are both given: only one of them can shard the model"
        yield _finding(
            Severity.ERROR,
            Topic.CONTRADICTION,
            file,
            "fsdp, deepspeed",
            message,
            "take one of them out",
            removing("fsdp"),
            removing("fsdp_config"),
        )
    if tree.get("fsdp_config") and not tree.get("fsdp"):
        message = "fsdp_config without fsdp does nothing"
        yield _finding(Severity.NOTE, Topic.HINT, file, "fsdp_config", message, "set fsdp: true where it is meant")
    yield from _loop_clashes(tree, file)
    yield from _step_counts(tree, file)


def _loop_clashes(tree: Tree, file: str) -> Iterator[Finding]:
    best, save, evaluate = (tree.get(name) for name in ("load_best_model_at_end", "save_strategy", "eval_strategy"))
    if is_true(best or False) and (save or "steps") != "best" and (evaluate or "no") != (save or "steps"):
        modes = f"eval_strategy={evaluate or 'no'} and save_strategy={save or 'steps'}"
        message = f"load_best_model_at_end with {modes}: they must be the same"
        fix = "give both the same"
        yield _finding(
            Severity.ERROR,
            Topic.CONTRADICTION,
            file,
            "load_best_model_at_end",
            message,
            fix,
            setting("eval_strategy", save or "steps"),
        )
    workers, prefetch = whole(tree.get("dataloader_num_workers", 0)), tree.get("dataloader_prefetch_factor")
    if workers == 0 and prefetch is not None:
        message = "dataloader_prefetch_factor without dataloader_num_workers: TrainingArguments stop"
        name = "dataloader_prefetch_factor"
        yield _finding(Severity.ERROR, Topic.CONTRADICTION, file, name, message, f"take {name} out", removing(name))


def _step_counts(tree: Tree, file: str) -> Iterator[Finding]:
    for name in ("logging_steps", "save_steps", "eval_steps"):
        steps = tree.get(name)
        if isinstance(steps, float) and steps > 1 and not steps.is_integer():
            message = f"{name}={shown(steps)}: above 1 it is a whole number, below a share of all steps"
            repair = setting(name, int(steps))
            yield _finding(Severity.ERROR, Topic.WRONG_TYPE, file, name, message, f"write {int(steps)}", repair)
    if tree.get("logging_steps") == 0 and tree.get("logging_strategy", "steps") == "steps":
        message, fix = 'logging_steps=0: TrainingArguments stop; logging_strategy "no" logs nothing', "write it"
        repairs = (removing("logging_steps"), setting("logging_strategy", "no"))
        yield _finding(Severity.ERROR, Topic.CONTRADICTION, file, "logging_steps", message, fix, *repairs)
    warm_up = tree.get("warmup_steps")
    if isinstance(warm_up, int | float) and warm_up < 0:
        message, fix = f"warmup_steps={shown(warm_up)} must not be below zero", "write 0"
        yield _finding(
            Severity.ERROR, Topic.CONTRADICTION, file, "warmup_steps", message, fix, setting("warmup_steps", 0)
        )


WHY = {
    "per_device_train_batch_size": "samples a GPU takes at once",
    "gradient_accumulation_steps": "",
    "max_grad_norm": "clips the gradient norm at 1",
    "learning_rate": "",
    "lr_scheduler_type": "the learning rate falls to zero",
    "warmup_steps": "",
    "weight_decay": "",
    "num_train_epochs": "",
    "bf16": "fp32 unless fp16 or bf16 is on",
    "optim": "",
    "gradient_checkpointing": "all activations are kept",
    "save_steps": "a checkpoint every 500 steps",
    "seed": "",
    "average_tokens_across_devices": "the loss is divided by the tokens of all ranks",
}
"""Arguments whose defaults change results or memory."""


def _values(tree: Tree, table: KeyTable, file: str, world_size: int | None) -> Iterator[Value]:
    yield from (Value(key=name, value=value, origin=Origin.FILE, by=file) for name, value in tree.items())
    for path, key in table.keys.items():
        if path not in tree:
            why = WHY[path] or "changes what is learnt" if path in WHY else ""
            yield Value(key=path, value=key.default, origin=Origin.DEFAULT, by=table.label, why=why)
    sizes = [whole(with_defaults(tree, table).get(name)) for name in (TRAINER_NAMES[MICRO], TRAINER_NAMES[STEPS])]
    if world_size and all(sizes):
        total = world_size * (sizes[0] or 0) * (sizes[1] or 0)
        by = "world size x per_device_train_batch_size x gradient_accumulation_steps"
        yield Value(key="samples per optimizer step", value=total, origin=Origin.DERIVED, by=by)


def _finding(
    severity: Severity, topic: Topic, file: str, key: str, message: str, fix: str, *repairs: Repair
) -> Finding:
    return Finding(severity=severity, topic=topic, file=file, key=key, message=message, fix=fix, repairs=repairs)
