"""plan.json as `scaling plan --out` writes it, and what else a file that is given for one may be."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from strategies.decision import Decision
from strategies.emit.files import PLAN_FILE
from strategies.errors import PlanError
from strategies.serialize import PLAN_AGAIN, from_json, numbers, short

_NEEDED = tuple(field.name for field in fields(Decision) if field.default is MISSING)
_LARGEST = 1e30
"""Bytes, FLOPs and seconds of any plan stay far below; sums of more would end in infinity."""
_KNOWN = (
    ("a DeepSpeed configuration", ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")),
    ("a model's config.json", ("model_type", "architectures")),
)
"""Files that lie near a plan, with keys that tell them."""


def read_plan(path: Path) -> Decision:
    """Return the decision that a plan file holds.

    Raises:
        ScalingError: it cannot be read or is something else, which is named; or a setting in it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the plan {path}: {_why(error)}; {_advice(path)}") from error
    if other := _what_else(text):
        raise PlanError(f"{path} is no plan: it {other}; {_advice(path)}")
    decision = from_json(Decision, text, source=str(path), name="plan")
    strange = [f"{name}={short(value)}" for name, value in numbers(decision) if not abs(value) < _LARGEST]  # or NaN
    if strange:
        raise PlanError(f"{path} is not a valid plan: {strange[0]} must be below {_LARGEST:g}; {PLAN_AGAIN}")
    return decision


def _why(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not text"


def _what_else(text: str) -> str | None:
    """Return what a file that is no plan is instead; None for a plan, right or wrong."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error})" if text.strip() else "is empty"
    if not isinstance(content, dict):
        return "holds no object in braces"
    return _other_kind(content)


def _other_kind(content: dict[str, Any]) -> str | None:
    absent = [name for name in _NEEDED if name not in content]
    if not absent:
        return None
    kind = next((kind for kind, keys in _KNOWN if any(key in content for key in keys)), None)
    return f"is {kind}" if kind and "plan" in absent else f"has no {', '.join(absent)}"


def _advice(path: Path) -> str:
    """Return what to give instead: the plan beside the file, or in the folder, where there is one."""
    folder = path if path.is_dir() else path.parent
    near = folder / PLAN_FILE
    if near != path and near.is_file():
        return f"give {near}"
    return f"give the {PLAN_FILE} that `scaling plan --out DIR` writes"
