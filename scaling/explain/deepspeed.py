"""A DeepSpeed configuration: what it says in the end, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from scaling.explain.auto_values import Surroundings, fill, wants_filling
from scaling.explain.batch import MICRO, STEPS, TOTAL, batch_findings, batch_of
from scaling.explain.deepspeed_keys import key_findings
from scaling.explain.deepspeed_parts_rules import PART_RULES
from scaling.explain.deepspeed_rules import STAGE_RULES, ZERO, DeepSpeedRun, rule_findings
from scaling.explain.findings import Finding, Severity, Topic
from scaling.explain.key_table import BLOCK, KeyTable
from scaling.explain.repair import as_meant, as_read
from scaling.explain.sources import Launcher
from scaling.explain.tree import AUTO, Tree, get, has, leaves, put, whole
from scaling.explain.values import Origin, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A file, resolved."""

    tree: Tree
    """As the launcher hands it to the engine; "auto" only where what fills it in is not known here."""
    values: tuple[Value, ...]
    findings: tuple[Finding, ...]


def explain_deepspeed(
    tree: Tree,
    table: KeyTable,
    *,
    file: str,
    around: Surroundings,
    non_data_ranks: int = 1,
    largest_parameter: int | None = None,
) -> Explained:
    """Return a DeepSpeed configuration resolved; ``non_data_ranks``: ranks that see the same data."""
    keys = key_findings(tree, table, file=file)
    read, meant = as_read(tree, keys), as_meant(tree, keys)
    ranks = _data_ranks(read, around.world_size, non_data_ranks)
    run = DeepSpeedRun(
        tree=meant, file=file, launcher=around.launcher, ranks=ranks, largest_parameter=largest_parameter
    )
    resolved, values, autos = _resolved(read, table, around, file=file)
    findings = [
        *keys,
        *batch_findings(meant, file=file, ranks=ranks),
        *rule_findings(run, STAGE_RULES),
        *rule_findings(run, PART_RULES),
    ]
    told = {each.key for each in findings if each.topic is Topic.UNKNOWN_KEY}
    autos = {path: by for path, by in autos.items() if path not in told}
    findings += _auto_findings(autos, file=file, around=around, table=table)
    values = _with_batch(values, resolved, ranks, file)
    values += _defaults(resolved, table, replace(run, tree=read))
    return Explained(tree=resolved, values=tuple(values), findings=tuple(findings))


def _data_ranks(tree: Tree, world_size: int | None, non_data_ranks: int) -> int | None:
    if world_size is None:
        return None
    parts = [whole(get(tree, key, 1)) or 1 for key in ("sequence_parallel_size", "tensor_parallel.autotp_size")]
    return max(world_size // max(non_data_ranks, parts[0] * parts[1], 1), 1)


def _resolved(
    tree: Tree, table: KeyTable, around: Surroundings, *, file: str
) -> tuple[Tree, list[Value], dict[str, str]]:
    """Return the tree with every "auto" filled in that can be, the values in it, and who fills in which "auto"."""
    resolved, values, autos = deepcopy(tree), list[Value](), dict[str, str]()
    for path, value in leaves(tree):
        if not wants_filling(path, value, table):
            values.append(Value(key=path, value=value, origin=Origin.FILE, by=file))
            continue
        found = fill(path, around, table)
        autos[path] = found.by if found else ""
        if found and found.value is not None:
            put(resolved, path, found.value)
        by = found.by if found else "nobody"
        values.append(Value(key=path, value=found.value if found else AUTO, origin=Origin.AUTO, by=by))
    if around.launcher is not Launcher.DEEPSPEED:
        if not has(tree, STEPS):
            put(resolved, STEPS, 1)
            values.append(Value(key=STEPS, value=1, origin=Origin.LAUNCHER, by="accelerate, where the file has none"))
        why = "accelerate stops DeepSpeed's own printing"
        values = [each for each in values if each.key != "steps_per_print"]
        values.append(Value(key="steps_per_print", value="infinity", origin=Origin.LAUNCHER, by="accelerate", why=why))
    return resolved, values, autos


STOPPING = ("", "optimizer", "scheduler", "data_types", "aio", "torch_autocast")
"""Blocks in which DeepSpeed works with what it gets, whatever it is; an "auto" in others counts as true."""


def _auto_findings(autos: dict[str, str], *, file: str, around: Surroundings, table: KeyTable) -> Iterator[Finding]:
    open_ones = [path for path, by in autos.items() if not by]
    dropped = [path for path, by in autos.items() if by.startswith(table.label)]
    if open_ones:
        who = "transformers' Trainer or accelerate" if around.launcher is Launcher.DEEPSPEED else str(around.launcher)
        does = "fills it in, DeepSpeed alone stops" if around.launcher is Launcher.DEEPSPEED else "does not fill it in"
        is_used = any(path.rpartition(".")[0].partition(".")[0] in STOPPING for path in open_ones)
        yield Finding(
            severity=Severity.ERROR if is_used else Severity.WARNING,
            topic=Topic.CONTRADICTION if is_used else Topic.HINT,
            file=file,
            key=", ".join(open_ones),
            message=f'"auto" stands at {", ".join(open_ones)}: {who} {does}',
            fix="give a value",
        )
    if dropped:
        yield Finding(
            severity=Severity.WARNING if around.launcher is Launcher.DEEPSPEED else Severity.NOTE,
            topic=Topic.HINT,
            file=file,
            key=", ".join(dropped),
            message=f'"auto" at {", ".join(dropped)} is dropped by {table.label}, which takes its default',
            fix="give a value",
        )


def _with_batch(values: list[Value], resolved: Tree, ranks: int | None, file: str) -> list[Value]:
    """Return the values with the batch sizes that follow from the others."""
    given = batch_of(resolved)
    done = given.completed(ranks)
    by = f"{TOTAL} = {MICRO} x {STEPS} x {ranks if ranks is not None else '?'} data-parallel ranks"
    for name, before, after in (
        (TOTAL, given.total, done.total),
        (MICRO, given.micro, done.micro),
        (STEPS, given.steps, done.steps),
    ):
        if before is None and after is not None:
            put(resolved, name, after)
            values = [each for each in values if each.key != name]
            values.append(Value(key=name, value=after, origin=Origin.DERIVED, by=by))
    return values


WHY: dict[str, str] = {
    "gradient_clipping": "clips the gradient norm at 1 since June 2026; before it did not clip",
    "zero_force_ds_cpu_optimizer": "with an offloaded optimizer your own Adam is replaced by DeepSpeedCPUAdam",
    "zero_allow_untested_optimizer": "optimizers that DeepSpeed does not know are refused under ZeRO",
    f"{ZERO}.overlap_comm": "on at stage 3 only; holds one more bucket",
    f"{ZERO}.reduce_bucket_size": "1 GB in 16 bits",
    f"{ZERO}.allgather_bucket_size": "1 GB in 16 bits",
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save": "save_16bit_model() writes nothing at stage 3",
    f"{ZERO}.stage3_prefetch_bucket_size": "0.1 GB in 16 bits",
    f"{ZERO}.stage3_max_live_parameters": "up to 2 GB of gathered weights in 16 bits",
    f"{ZERO}.offload_optimizer.pin_memory": "locks host memory (ulimit -l); was off in earlier versions",
    f"{ZERO}.offload_param.pin_memory": "locks host memory (ulimit -l); was off in earlier versions",
    "bf16.check_grad_overflow": "skips steps whose gradients are not finite; was off in earlier versions",
    "fp16.loss_scale_window": "steps without overflow before the scale doubles",
    "fp16.hysteresis": "overflows before the scale halves",
    "optimizer.params.adam_w_mode": 'type "Adam" is AdamW unless this is false',
}
"""Defaults that change results or memory and are easily missed."""


def _defaults(resolved: Tree, table: KeyTable, run: DeepSpeedRun) -> list[Value]:
    """Return the defaults of every block that is there, those that change something with what they change."""
    found = []
    for path, key in table.keys.items():
        if path != key.path or BLOCK in key.kind or key.deprecated_for is not None or "dict" in key.kind:
            continue
        if any(has(resolved, f"{key.block}.{name}" if key.block else name) for name in (key.name, *key.names)):
            continue
        if key.block and not isinstance(get(resolved, key.block, None), dict):
            continue
        if path in (TOTAL, MICRO, STEPS):
            continue
        value: Any = run.stage == 3 if path == f"{ZERO}.overlap_comm" else key.default
        why = WHY.get(path, "") if _matters(path, run) else ""
        found.append(Value(key=path, value=value, origin=Origin.DEFAULT, by=table.label, why=why))
    if run.value("optimizer.type") == "Adam" and not has(resolved, "optimizer.params.adam_w_mode"):
        mode = "optimizer.params.adam_w_mode"
        found.append(Value(key=mode, value=True, origin=Origin.DEFAULT, by=table.label, why=WHY[mode]))
    return found


def _matters(path: str, run: DeepSpeedRun) -> bool:
    if path.startswith(f"{ZERO}.stage3_"):
        return run.stage == 3
    if path.startswith(f"{ZERO}.offload_"):
        return run.device(path.split(".")[1]) != "none"
    if path.startswith(("fp16.", "bf16.")):
        return run.value(f"{path[:4]}.enabled") is not False
    if path == "zero_force_ds_cpu_optimizer":
        return run.device("offload_optimizer") != "none"
    if path == "zero_allow_untested_optimizer":
        return run.stage > 0
    return run.stage > 0 or not path.startswith(ZERO)
