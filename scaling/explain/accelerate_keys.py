"""Unknown, misspelt and former keys of an accelerate YAML, and values of the wrong type.

accelerate refuses unknown keys at the top of the file and passes over those inside blocks without a word
(1.15.0, commands/config/config_args.py and commands/launch.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scaling.explain.findings import Finding, Repair, Severity, Topic, removing, renaming, setting
from scaling.explain.history import ACCELERATE_REMOVED, ACCELERATE_RENAMED, ACCELERATE_WITHOUT_EFFECT
from scaling.explain.key_table import Key, KeyTable, nearest, shipped_table
from scaling.explain.tree import AUTO, MISSING, Tree, has, shown
from scaling.explain.value_types import Fit, judge

PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
"""What the launcher puts before keys of a block that lack it."""


SAGEMAKER = "AMAZON_SAGEMAKER"
FORMER_WORDS = {("distributed_type", "TPU"): "XLA"}


def key_findings(tree: Tree, table: KeyTable, *, file: str) -> list[Finding]:
    """Return what is wrong with the keys and the types of an accelerate file."""
    found: list[Finding] = []
    if tree.get("compute_environment") == SAGEMAKER:
        return found  # another reader with other keys
    for name, value in tree.items():
        key = table.keys.get(name)
        if key is None:
            found.append(_unknown_at_top(name, tree, table, file))
        elif key.deprecated_for:
            found.append(_former_at_top(name, value, key, file))
        elif name.endswith("_config") and key.kind == "block":
            found += _in_block(name, value, table, file)
        else:
            found += _typed(name, value, key, file)
    return found


def _unknown_at_top(name: str, tree: Tree, table: KeyTable, file: str) -> Finding:
    near = nearest(name, (each for each in table.by_block[""] if each not in tree))
    elsewhere = next((key.path for key in table.keys.values() if key.name == name), None)
    fix, repairs = f"take {name} out", (removing(name),)
    if near:
        fix, repairs = f"write {near}", (renaming(name, near),)
    elif elsewhere and not has(tree, elsewhere):
        fix, repairs = f"put it into {elsewhere.partition('.')[0]}", (renaming(name, elsewhere),)
    if name in ACCELERATE_REMOVED:
        message = f"{name} is of earlier versions, {table.label} refuses the file: {ACCELERATE_REMOVED[name]}"
        return _finding(Severity.ERROR, Topic.VERSION, file, name, message, f"take {name} out", removing(name))
    message = f"{name} is no key of {table.label}{f', the nearest is {near}' if near else ''}: it refuses the file"
    return _finding(Severity.ERROR, Topic.UNKNOWN_KEY, file, name, message, fix, *repairs)


def _former_at_top(name: str, value: Any, key: Key, file: str) -> Finding:
    instead = key.deprecated_for
    if name == "fp16":
        precision = "fp16" if value is True else "no"
        repairs, instead = [removing(name), setting("mixed_precision", precision)], f"mixed_precision: '{precision}'"
    else:
        repairs = [removing(name)] if value == "NO" else [renaming(name, key.deprecated_for or "")]
    message = f"{name}={shown(value)} is of an earlier accelerate, now {key.deprecated_for}"
    fix = f"take {name} out" if value == "NO" else f"write {instead}"
    return _finding(Severity.WARNING, Topic.DEPRECATED, file, name, message, fix, *repairs)


def _in_block(block: str, value: Any, table: KeyTable, file: str) -> Iterator[Finding]:
    if value is None:
        return
    if not isinstance(value, dict):
        message = f"{block}={shown(value)} should be a block of keys with values"
        yield _finding(
            Severity.ERROR, Topic.WRONG_TYPE, file, block, message, "give a block, or take it out", removing(block)
        )
        return
    prefix, bare = PREFIXES.get(block, ""), []
    for name, inner in value.items():
        path = f"{block}.{name}"
        full = path if not prefix or name.startswith(prefix) else f"{block}.{prefix}{name}"
        if full in ACCELERATE_RENAMED or full in ACCELERATE_WITHOUT_EFFECT:
            yield _former(path, full, file)
        elif (key := table.keys.get(full)) is None:
            yield _unknown(path, block, name, value, table, file)
        else:
            if full != path:
                bare.append(name)
            yield from _typed(path, inner, key, file)
    if bare and block == "fsdp_config":
        repairs = [renaming(f"{block}.{name}", f"{block}.{prefix}{name}") for name in bare]
        message = f"{', '.join(bare)} without {prefix} before it: the form of 2022, which is still read"
        fix = f"write {', '.join(prefix + name for name in bare)}"
        yield _finding(Severity.WARNING, Topic.DEPRECATED, file, f"{block}.{bare[0]}", message, fix, *repairs)


def _former(path: str, full: str, file: str) -> Finding:
    new = ACCELERATE_RENAMED.get(full)
    if new is None:
        message = f"{path} does nothing: {ACCELERATE_WITHOUT_EFFECT[full]}"
        return _finding(Severity.WARNING, Topic.DEPRECATED, file, path, message, f"take {path} out", removing(path))
    message = f"{path} is a former name that accelerate passes over: the setting is lost"
    return _finding(Severity.WARNING, Topic.DEPRECATED, file, path, message, f"write {new}", renaming(path, new))


def _unknown(path: str, block: str, name: str, value: Tree, table: KeyTable, file: str) -> Finding:
    near = table.nearest(block, name) or table.nearest(block, f"{PREFIXES.get(block, '')}{name}")
    if near and near not in value:
        message = f"{path} is no key, the nearest is {near}: accelerate passes over it, the setting is lost"
        fix = f"write {near}"
        return _finding(Severity.ERROR, Topic.UNKNOWN_KEY, file, path, message, fix, renaming(path, f"{block}.{near}"))
    belongs = ""
    if block == "deepspeed_config" and any(each.rpartition(".")[2] == name for each in shipped_table("deepspeed").keys):
        belongs = " (it is a key of a DeepSpeed JSON, named by deepspeed_config_file)"
    message = f"{path} does nothing: accelerate passes over it{belongs}"
    return _finding(Severity.WARNING, Topic.HINT, file, path, message, f"take {path} out", removing(path))


EXACT = ("compute_environment", "distributed_type")
"""Words in capitals only."""
QUOTED = ("mixed_precision", "distributed_type")
"""Where YAML 1.1 takes an unquoted ``no`` for false."""


def _typed(path: str, value: Any, key: Key, file: str) -> Iterator[Finding]:
    if value is None and path in EXACT:
        message = f"{path} is empty, it should be one of {', '.join(key.choices)}"
        yield _finding(Severity.ERROR, Topic.WRONG_TYPE, file, path, message, "give one of them", removing(path))
    if value is None or (key.kind == "any" and not key.choices):
        return
    if path in QUOTED and isinstance(value, bool):
        yield _unquoted(path, value, file)
        return
    if value == AUTO and path in ("deepspeed_config.gradient_accumulation_steps", "deepspeed_config.gradient_clipping"):
        return
    if isinstance(value, str) and (path, value) in FORMER_WORDS:
        new = FORMER_WORDS[path, value]
        message = f"{path}={value} is of earlier versions, now {new}"
        yield _finding(Severity.ERROR, Topic.VERSION, file, path, message, f"write {new}", setting(path, new))
        return
    judged = judge(value, key)
    if judged.fit is Fit.RIGHT or _as_text(path, value, key):
        return
    if judged.fit is Fit.CONVERTED:
        if "." in path and not isinstance(value, bool):  # travels as text through the environment
            return
        is_refused = "." in path or path == "main_process_port"  # text that is no number; a socket takes no text
        yield _finding(
            Severity.ERROR if is_refused else Severity.WARNING,
            Topic.WRONG_TYPE if is_refused else Topic.ACCEPTED_TYPE,
            file,
            path,
            f"{path}={shown(value)} should be {judged.wanted}",
            f"write {shown(judged.better)}",
            setting(path, judged.better),
        )
        return
    better = judged.better
    if isinstance(value, list) and key.kind == "str" and all(isinstance(each, str) for each in value):
        better = ",".join(value)
    repairs = () if better is MISSING else (setting(path, better),)
    message = f"{path}={shown(value)} should be {judged.wanted}"
    fix = f"write {shown(better)}" if repairs else f"give {judged.wanted}"
    severity = Severity.WARNING if path.startswith(("tpu", "command")) else Severity.ERROR  # read for TPU pods only
    yield _finding(severity, Topic.WRONG_TYPE, file, path, message, fix, *(repairs or (removing(path),)))


def _as_text(path: str, value: Any, key: Key) -> bool:
    """Whether a value is right once it is text, as all of a block become on their way to the program."""
    if path == "downcast_bf16" and isinstance(value, str):
        return True  # the questionnaire writes 'no'
    if path == "gpu_ids" and not isinstance(value, str):
        return False  # it is split at commas
    is_plain = isinstance(value, bool | int | float | str)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if key.choices and path in EXACT:
        return False
    if key.choices:
        return is_plain and text.upper() in {str(each).upper() for each in key.choices}
    return is_plain and key.kind == "str" and "." in path


def _unquoted(path: str, value: bool, file: str) -> Finding:
    if path == "mixed_precision":
        message = "mixed_precision: no without quotes is false in YAML 1.1: accelerate stops ('bool' has no lower)"
        right, severity, topic = "no", Severity.ERROR, Topic.WRONG_TYPE
    else:
        message = "distributed_type: NO without quotes is false in YAML 1.1; it is taken for one process by chance"
        right, severity, topic = "NO", Severity.WARNING, Topic.WRONG_TYPE
    if value:
        message, severity = f"{path}={shown(value)} is none of its words", Severity.ERROR
    return _finding(severity, topic, file, path, message, f"write '{right}' with quotes", setting(path, right))


def _finding(
    severity: Severity, topic: Topic, file: str, key: str, message: str, fix: str, *repairs: Repair
) -> Finding:
    return Finding(severity=severity, topic=topic, file=file, key=key, message=message, fix=fix, repairs=repairs)
