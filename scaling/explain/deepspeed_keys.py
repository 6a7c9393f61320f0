"""Unknown, misspelt, removed and deprecated keys of a DeepSpeed JSON, and values of the wrong type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scaling.explain.findings import Finding, Severity, Topic, removing, renaming, setting
from scaling.explain.history import (
    DEEPSPEED_SINCE,
    FORMER_DEEPSPEED_KEYS,
    REMOVED_DEEPSPEED_KEYS,
    RENAMED_DEEPSPEED_KEYS,
)
from scaling.explain.key_table import BLOCK, Key, KeyTable, nearest
from scaling.explain.tree import AUTO, MISSING, Tree, get, is_true, shown, whole
from scaling.explain.value_types import Fit, Judged, judge

SURE = 0.85
"""How alike a key at the top must be to one that is known: programs keep keys of their own there."""
OFFLOADS = ("zero_optimization.offload_optimizer", "zero_optimization.offload_param")


def key_findings(tree: Tree, table: KeyTable, *, file: str) -> list[Finding]:
    """Return what is wrong with the keys and the types of a DeepSpeed file."""
    return [*_in_block(tree, "", _Walk(tree=tree, table=table, file=file)), *_unknown_at_top(tree, table, file)]


class _Walk:
    """What stays the same while a file is walked through."""

    def __init__(self, *, tree: Tree, table: KeyTable, file: str) -> None:
        self.tree, self.table, self.file = tree, table, file
        self.is_tuned = is_true(get(tree, "autotuning.enabled", False))

    def finding(self, severity: Severity, topic: Topic, key: str, message: str, **more: Any) -> Finding:
        return Finding(severity=severity, topic=topic, file=self.file, key=key, message=message, **more)


def _in_block(tree: Tree, block: str, walk: _Walk) -> Iterator[Finding]:
    for name, value in tree.items():
        path = f"{block}.{name}" if block else name
        if path in REMOVED_DEEPSPEED_KEYS or name in _removed_by_reader(walk.table, block):
            yield _removed(path, walk)
        elif (key := walk.table.keys.get(path)) is None:
            if path in RENAMED_DEEPSPEED_KEYS:
                yield _renamed(path, walk)
            elif block:
                yield _unknown(path, block, name, walk)
        else:
            yield from _known(path, key, value, walk)


def _removed_by_reader(table: KeyTable, block: str) -> tuple[str, ...]:
    return tuple(each.rpartition(".")[2] for each in table.removed if each.rpartition(".")[0] == block)


def _removed(path: str, walk: _Walk) -> Finding:
    why = REMOVED_DEEPSPEED_KEYS.get(path) or walk.table.removed[path].strip()
    instead = FORMER_DEEPSPEED_KEYS.get(path)
    value = get(walk.tree, path)
    repairs = [removing(path)]
    if instead and is_true(value) and not _has(walk.tree, instead):
        repairs.append(setting(instead, {"device": "cpu"}))
    return walk.finding(
        Severity.ERROR,
        Topic.VERSION,
        path,
        f"{path} is of another version of DeepSpeed, {walk.table.label} refuses it: {why}",
        fix=f'write {instead}: {{"device": "cpu"}} instead' if instead else f"take {path} out",
        repairs=tuple(repairs),
    )


def _renamed(path: str, walk: _Walk) -> Finding:
    new = RENAMED_DEEPSPEED_KEYS[path]
    message = f"{path} is a former name that {walk.table.label} passes over, now {new}"
    return walk.finding(Severity.WARNING, Topic.HINT, path, message, fix=f"write {new}", repairs=(renaming(path, new),))


def _has(tree: Tree, path: str) -> bool:
    return isinstance(get(tree, path), dict)


def _unknown(path: str, block: str, name: str, walk: _Walk) -> Finding:
    table, is_strict = walk.table, block in walk.table.strict
    near = table.nearest(block, name)
    elsewhere = None if near or name == block else _elsewhere(name, table)
    treated = f"{table.label} refuses the file" if is_strict else f"{table.label} passes over it"
    fix, repairs = f"take {path} out", (removing(path),)
    if near and f"{block}.{near}" != path and get(walk.tree, f"{block}.{near}") is MISSING:
        fix, repairs = f"write {near}", (renaming(path, f"{block}.{near}"),)
    elif elsewhere:
        place = elsewhere.rpartition(".")[0]
        fix = f"{name} belongs to {place or 'the top level'}; take it out here"
        if get(walk.tree, elsewhere) is MISSING and (not place or _has(walk.tree, place)):
            fix, repairs = f"move it to {place or 'the top level'}", (renaming(path, elsewhere),)
    return walk.finding(
        Severity.ERROR if is_strict or near else Severity.WARNING,
        Topic.UNKNOWN_KEY,
        path,
        f"{path} is no key of {block}{f', the nearest is {near}' if near else ''}: {treated}",
        fix=fix,
        repairs=repairs,
    )


def _of_zero(name: str, table: KeyTable) -> str | None:
    """Return the place of a key that only ``zero_optimization`` has, None where others may have it as well."""
    found = _elsewhere(name, table)
    is_told = found is not None and found.rpartition(".")[0] == "zero_optimization" and name != "stage"
    return found if is_told else None


def _elsewhere(name: str, table: KeyTable) -> str | None:
    """Return the place where a key of this name is known, None where it is nowhere or in several places."""
    places = [path for path in table.keys if path.rpartition(".")[2] == name]
    return places[0] if len(places) == 1 else None


def _unknown_at_top(tree: Tree, table: KeyTable, file: str) -> Iterator[Finding]:
    """Yield one finding for each misspelt key at the top and one for all others: DeepSpeed passes over them."""
    walk = _Walk(tree=tree, table=table, file=file)
    known = [*table.by_block[""], *table.removed]
    others = []
    for name in tree:
        if name in table.keys or name in REMOVED_DEEPSPEED_KEYS or name in table.removed or name in COMMENTS:
            continue
        near = nearest(name, known, cutoff=SURE)
        if (misplaced := _of_zero(name, table)) and get(tree, misplaced) is MISSING:
            yield walk.finding(
                Severity.ERROR,
                Topic.UNKNOWN_KEY,
                name,
                f"{name} belongs to zero_optimization: at the top DeepSpeed passes over it, the setting is lost",
                fix="move it into zero_optimization",
                repairs=(renaming(name, misplaced),),
            )
        elif near and near not in tree and near in table.keys:
            yield walk.finding(
                Severity.ERROR,
                Topic.UNKNOWN_KEY,
                name,
                f"{name} is no key of DeepSpeed, which passes over it; the nearest is {near}",
                fix=f"write {near}",
                repairs=(renaming(name, near),),
            )
        else:
            others.append(name)
    if others:
        yield walk.finding(
            Severity.WARNING,
            Topic.UNKNOWN_TOP_KEY,
            ", ".join(others[:8]) + (f" and {len(others) - 8} more" if len(others) > 8 else ""),
            f"{len(others)} at the top that {table.label} does not know and passes over: {_told(others)}",
            fix="take out what your own program does not read",
        )


COMMENTS = ("comment", "_comment", "comments", "//", "$schema", "description", "_description", "notes")
TOLD = {
    "gradient_checkpointing": "activation checkpointing is switched on in the model or the Trainer, not here",
    "per_device_train_batch_size": "an argument of the Trainer; here it is train_micro_batch_size_per_gpu",
    "comms_config": "the key is comms_logger",
    "monitor_config": "the keys are tensorboard, wandb, csv_monitor and comet, at the top",
    "nvme_swap_dir": "the path belongs into offload_optimizer and offload_param as nvme_path",
    "pipe-parallel-size": "a GPT-NeoX file: its own reader takes the keys with dashes",
}


def _told(names: list[str]) -> str:
    told = [f"{name} ({TOLD[name]})" if name in TOLD else name for name in names[:8]]
    return ", ".join(told) + (", ..." if len(names) > 8 else "")


def _known(path: str, key: Key, value: Any, walk: _Walk) -> Iterator[Finding]:
    if key.deprecated_for is not None:
        yield from _deprecated(path, key, value, walk)
    if path in DEEPSPEED_SINCE and value not in (False, None, 0, 1):
        since, why = DEEPSPEED_SINCE[path]
        message = f"{path}={shown(value)} needs DeepSpeed {since} or later, earlier ones refuse the file; {why}"
        yield walk.finding(Severity.NOTE, Topic.VERSION, path, message)
    if value == AUTO or (walk.is_tuned and isinstance(value, list)):
        return  # filled in by the launcher or, a list, tried out by the autotuner
    judged = judge(value, key)
    if path == "zero_optimization" and isinstance(value, bool):
        yield _form_of_2020(path, value, walk)
    elif judged.fit is not Fit.RIGHT:
        yield _wrong_type(path, key, value, judged, walk)
    elif isinstance(value, dict) and (key.deprecated_for in walk.table.strict or BLOCK in key.kind.split("|")):
        yield from _in_block(value, key.deprecated_for or key.path, walk)


def _wrong_type(path: str, key: Key, value: Any, judged: Judged, walk: _Walk) -> Finding:
    is_read_by_model = any(key.block == block or key.block.startswith(f"{block}.") for block in walk.table.strict)
    is_taken = judged.fit is Fit.CONVERTED and is_read_by_model and not _refuses_bool(path, value)
    better = _as_block(path, value, walk.table) if BLOCK in key.kind.split("|") else judged.better
    is_stage = path == "zero_optimization.stage"  # without it ZeRO is off, which nobody has asked for
    treated = "it is converted" if is_taken else f"{walk.table.label} does not take it"
    return walk.finding(
        Severity.WARNING if is_taken else Severity.ERROR,
        Topic.ACCEPTED_TYPE if is_taken and not isinstance(value, str) else Topic.WRONG_TYPE,
        path,
        f"{path}={shown(value)} should be {judged.wanted}; {treated}",
        fix=f"write {shown(better)}" if better is not MISSING else f"give {judged.wanted}",
        repairs=(setting(path, better),) if better is not MISSING else () if is_stage else (removing(path),),
    )


def _as_block(path: str, value: Any, table: KeyTable) -> Any:
    """Return the block that a single value stands for: a switch, a kind or a stage; MISSING where none is known."""
    if path in OFFLOADS and isinstance(value, bool | str):
        return {"device": "none" if value in (False, "none", "") else "nvme" if value == "nvme" else "cpu"}
    if path == "zero_optimization" and whole(value) in range(4):
        return {"stage": whole(value)}
    if isinstance(value, bool) and f"{path}.enabled" in table.keys:
        return {"enabled": value}
    if isinstance(value, str) and value and path in ("optimizer", "scheduler"):
        return {"type": value}
    return MISSING


def _refuses_bool(path: str, value: Any) -> bool:
    """Whether DeepSpeed has a check of its own here (runtime/precision_config.py)."""
    names = ("fp16.loss_scale", "fp16.loss_scale_window", "fp16.min_loss_scale")
    return path in names and isinstance(value, bool)


def _form_of_2020(path: str, value: bool, walk: _Walk) -> Finding:
    stage = 1 if value else 0
    return walk.finding(
        Severity.WARNING,
        Topic.ACCEPTED_TYPE,
        path,
        f"{path}={shown(value)} is the form of 2020: DeepSpeed makes it stage {stage}; accelerate and the Trainer "
        f"stop, for they look for a block",
        fix=f'write {{"stage": {stage}}}',
        repairs=(setting(path, {"stage": stage}),),
    )


def _deprecated(path: str, key: Key, value: Any, walk: _Walk) -> Iterator[Finding]:
    new = key.deprecated_for or ""
    repairs = [removing(path)]
    is_offload = new.endswith(("offload_optimizer", "offload_param")) and " or " not in new
    if is_offload:
        if is_true(value) and _has(walk.tree, new):
            message = f"{path} and {new} stand together: DeepSpeed refuses an old key beside the one that replaced it"
            yield walk.finding(
                Severity.ERROR, Topic.CONTRADICTION, path, message, fix=f"take {path} out", repairs=(removing(path),)
            )
            return
        if is_true(value):
            repairs.append(setting(new, {"device": "cpu"}))
    elif new and " or " not in new and get(walk.tree, new) is MISSING:
        new = _main_path(new, walk.table)
        repairs = [renaming(path, new)]
    instead = new
    if is_offload:
        instead = f'{new}: {{"device": "cpu"}}' if is_true(value) else ""
    yield walk.finding(
        Severity.WARNING,
        Topic.DEPRECATED,
        path,
        f"{path}={shown(value)} is deprecated{f', now {instead}' if instead else ' and without effect'}",
        fix=f"write {instead}" if instead and " or " not in instead else f"take {path} out",
        repairs=tuple(repairs),
    )


def _main_path(path: str, table: KeyTable) -> str:
    return table.keys[path].path if path in table.keys else path
