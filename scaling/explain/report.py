"""An explanation as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scaling.explain.explanation import Explanation
from scaling.explain.findings import Finding, Topic, exit_code, verdict
from scaling.explain.fit import Fitting
from scaling.explain.sources import PACKAGES, FileKind, Launcher
from scaling.explain.tree import shown
from scaling.explain.values import Origin, Value
from strategies.explain import describe_plan
from strategies.serialize import plain
from strategies.units import format_bytes, format_seconds

KINDS = {
    FileKind.DEEPSPEED: "DeepSpeed JSON",
    FileKind.ACCELERATE: "accelerate configuration",
    FileKind.TRAINING_ARGS: "TrainingArguments",
}
LAUNCHERS = {
    Launcher.DEEPSPEED: "deepspeed.initialize does, which fills in nothing",
    Launcher.ACCELERATE: "accelerate does",
    Launcher.TRAINER: "transformers' Trainer does",
}


def lines(found: Explanation, *, everything: bool, versions: Iterable[str] = ()) -> Iterator[str]:
    """Yield an explanation line by line; ``everything``: all defaults, not only those that are easily missed."""
    for source in found.sources.all:
        kind = KINDS[source.kind] if source.kind else "of no known kind"
        named = f", named by {source.named_by}" if source.named_by else ""
        yield f"{source.name}: {kind}{named}: {found.verdict_on(source.name)}"
    ranks = "not known (--world-size)" if found.world_size is None else str(found.world_size)
    yield f"Read as {LAUNCHERS[found.launcher]}; ranks: {ranks}"
    yield from versions
    yield ""
    yield from _finding_lines(found)
    yield from _value_lines(found.values, everything=everything)


def _finding_lines(found: Explanation) -> Iterator[str]:
    if not found.findings:
        yield "Nothing is wrong."
        return
    several = len(found.sources.all) > 1
    for each in found.findings:
        where = f"{each.file}: " if several else ""
        yield f"{each.severity:7}  {where}{_message(each)}"
        if each.fix:
            yield f"         -> {each.fix}"


def _message(finding: Finding) -> str:
    """Return what is said, with the key before it where the message does not name it."""
    if finding.topic is Topic.UNKNOWN_TOP_KEY:
        return finding.message  # it lists them
    keys = [key for key in finding.key.split(", ") if key]
    named = all(key in finding.message or key.rpartition(".")[2] in finding.message for key in keys)
    return finding.message if named or not keys else f"{finding.key}: {finding.message}"


def _value_lines(values: Iterable[Value], *, everything: bool) -> Iterator[str]:
    told = [each for each in values if everything or each.origin is not Origin.DEFAULT or each.why]
    if not told:
        return
    yield ""
    yield "Resolved:"
    width = min(max(len(each.key) for each in told), 66)
    for each in told:
        value = "?" if each.value is None and each.origin is Origin.AUTO else shown(each.value, longest=40)
        why = f" ({each.why})" if each.why else ""
        yield f"  {each.key:{width}}  {value:<12}  {_origin(each)}{why}"
    if not everything:
        yield "  (--all shows every default)"


def _origin(value: Value) -> str:
    words = {
        Origin.FILE: Path(value.by).name,
        Origin.AUTO: f'"auto", by {value.by}',
        Origin.DERIVED: f"follows: {value.by}",
        Origin.LAUNCHER: f"set by {value.by}",
        Origin.DEFAULT: f"default of {value.by}",
    }
    return words[value.origin]


def fit_lines(fit: Fitting) -> Iterator[str]:
    """Yield whether the run fits, and what would be better."""
    usable, needed = format_bytes(fit.usable_bytes), format_bytes(fit.needed_bytes)
    time = "" if fit.step_time_s is None else f", {format_seconds(fit.step_time_s)} a step"
    yield ""
    yield f"{'Fits' if fit.fits else 'Does not fit'}: {describe_plan(fit.plan)} needs {needed} of {usable} a GPU{time}"
    if fit.assumed:
        yield f"  taken where the files do not say: {', '.join(fit.assumed)}"
    if fit.better is None:
        yield f"  nothing fits: {fit.why_nothing}"
    elif fit.is_best:
        yield "  the planner takes the same"
    else:
        better = fit.better
        faster = "" if better.time is None else f", {format_seconds(better.time.total_s)} a step"
        bytes_needed = format_bytes(better.estimate.device_bytes)
        yield f"  the planner takes {describe_plan(better.plan, better.job.loss)}: {bytes_needed}{faster}"


def as_json(found: Explanation, fit: Fitting | None, *, versions: Iterable[str] = ()) -> dict[str, Any]:
    """Return an explanation as it is printed with ``--json``."""
    answer: dict[str, Any] = {
        "verdict": verdict(found.findings),
        "exit_code": exit_code(found.findings),
        "launcher": found.launcher,
        "world_size": found.world_size,
        "versions": list(versions),
        "files": [
            {
                "file": source.name,
                "kind": source.kind,
                "table": PACKAGES[source.kind] if source.kind else None,
                "named_by": source.named_by,
                "verdict": found.verdict_on(source.name),
            }
            for source in found.sources.all
        ],
        "findings": [_finding(each) for each in found.findings],
        "values": [plain(each) for each in found.values],
        "deepspeed_config": found.deepspeed,
    }
    if fit is not None:
        answer["fit"] = _fit(fit)
    return dict(_finite(answer))


def _finite(value: Any) -> Any:
    """Return a value that every JSON reader takes: infinite numbers as text, dates and the like too."""
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    is_plain = (
        value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    )
    return value if is_plain else str(value)


def _finding(finding: Finding) -> dict[str, Any]:
    named = plain(finding)
    return {name: named[name] for name in ("severity", "topic", "file", "key", "message", "fix", "repairs")}


def _fit(fit: Fitting) -> dict[str, Any]:
    better = fit.better
    return {
        "fits": fit.fits,
        "needed_bytes": fit.needed_bytes,
        "usable_bytes": fit.usable_bytes,
        "step_time_s": fit.step_time_s,
        "assumed": list(fit.assumed),
        "job": plain(fit.job),
        "plan": plain(fit.plan),
        "is_best": fit.is_best,
        "better": None
        if better is None
        else {
            "plan": plain(better.plan),
            "loss": better.job.loss,
            "device_bytes": better.estimate.device_bytes,
            "step_time_s": None if better.time is None else better.time.total_s,
        },
    }
