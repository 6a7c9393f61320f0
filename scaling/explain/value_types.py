"""Whether a value is of the type that a key takes, and what it becomes where readers convert it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scaling.explain.key_table import BLOCK, Key, nearest
from scaling.explain.tree import MISSING, whole

TRUE = ("true", "1", "yes", "on", "t", "y")
FALSE = ("false", "0", "no", "off", "f", "n")
"""pydantic's words, in any case."""


class Fit(StrEnum):
    """How well a value fits its key."""

    RIGHT = "right"
    CONVERTED = "converted"
    """Of another type, but readers that convert take it."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A value beside the type that was wanted."""

    fit: Fit
    wanted: str = ""
    """In words."""
    better: Any = MISSING
    """The value as it should stand, where there is one."""


WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "list of text": "a list of words",
    "dict": "a block {...}",
    BLOCK: "a block {...}",
}
RIGHT = Judged(fit=Fit.RIGHT)


def judge(value: Any, key: Key) -> Judged:
    """Return whether ``value`` fits ``key``: its kind, its choices and its bounds."""
    kinds = key.kind.split("|")
    if value is None:
        return RIGHT if key.nullable or "any" in kinds else Judged(fit=Fit.WRONG, wanted=_wanted(key))
    if "any" in kinds:
        return _chosen(value, key)
    judged = [_of_kind(value, kind) for kind in kinds]
    best = next((each for fit in Fit for each in judged if each.fit is fit), RIGHT)
    if best.fit is Fit.WRONG:
        return _chosen(value, key) if key.choices else Judged(fit=Fit.WRONG, wanted=_wanted(key))
    inner = _chosen(value if best.better is MISSING else best.better, key)
    if inner.fit is Fit.WRONG or best.fit is Fit.RIGHT:
        return inner
    return Judged(fit=best.fit, wanted=_wanted(key), better=best.better)


def _wanted(key: Key) -> str:
    if key.choices:
        return f"one of {', '.join(str(each) for each in key.choices)}"
    return " or ".join(dict.fromkeys(WORDS.get(kind, kind) for kind in key.kind.split("|"))) + _bounds(key)


def _bounds(key: Key) -> str:
    if key.above is not None:
        return f" above {key.above:g}" + (f" and below {key.below:g}" if key.below is not None else "")
    if key.at_least is None:
        return ""
    return f" from {key.at_least:g}" + (f" to {key.at_most:g}" if key.at_most is not None else "")


def _of_kind(value: Any, kind: str) -> Judged:
    match kind:
        case "bool":
            return _bool(value)
        case "int":
            return _int(value)
        case "float":
            return _float(value)
        case "str":
            return RIGHT if isinstance(value, str) else Judged(fit=Fit.WRONG)
        case "list":
            return RIGHT if isinstance(value, list) else Judged(fit=Fit.WRONG)
        case "list of text":
            is_text = isinstance(value, list) and all(isinstance(each, str) for each in value)
            return RIGHT if is_text else Judged(fit=Fit.WRONG)
    return RIGHT if isinstance(value, dict) else Judged(fit=Fit.WRONG)


def _bool(value: Any) -> Judged:
    if isinstance(value, bool):
        return RIGHT
    if isinstance(value, str) and value.lower() in (*TRUE, *FALSE):
        return Judged(fit=Fit.CONVERTED, better=value.lower() in TRUE)
    if isinstance(value, int | float) and value in (0, 1):
        return Judged(fit=Fit.CONVERTED, better=bool(value))
    return Judged(fit=Fit.WRONG)


def _int(value: Any) -> Judged:
    if isinstance(value, bool):
        return Judged(fit=Fit.CONVERTED, better=int(value))
    number = whole(value)
    if number is None or abs(number) >= 2**63:
        return Judged(fit=Fit.WRONG)
    return Judged(fit=Fit.CONVERTED, better=number) if isinstance(value, str) else RIGHT


def _float(value: Any) -> Judged:
    if isinstance(value, bool):
        return Judged(fit=Fit.CONVERTED, better=float(value))
    if isinstance(value, int | float):
        return RIGHT
    try:
        number = float(value) if isinstance(value, str) and len(value) < 40 else math.nan
    except ValueError:
        number = math.nan
    return Judged(fit=Fit.WRONG) if math.isnan(number) else Judged(fit=Fit.CONVERTED, better=number)


def _chosen(value: Any, key: Key) -> Judged:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is not None and not _in_bounds(number, key):
        return Judged(fit=Fit.WRONG, wanted=_wanted(key))
    if not key.choices or value in key.choices or _is_beside_choices(value, number, key):
        return RIGHT
    near = nearest(str(value), [each for each in key.choices if isinstance(each, str)])
    return Judged(fit=Fit.WRONG, wanted=_wanted(key), better=near if near else MISSING)


def _is_beside_choices(value: Any, number: float | None, key: Key) -> bool:
    """Whether the choices are not about this value: they are of what is in a list, or of text beside numbers."""
    if isinstance(value, list):
        return "list" in key.kind and all(each in key.choices for each in value)
    return (
        number is not None
        and whole(number) is not None
        and isinstance(key.choices[0], str)
        and "int" in key.kind.split("|")
    )


def _in_bounds(number: float, key: Key) -> bool:
    return (
        (key.at_least is None or number >= key.at_least)
        and (key.above is None or number > key.above)
        and (key.at_most is None or number <= key.at_most)
        and (key.below is None or number < key.below)
    )
