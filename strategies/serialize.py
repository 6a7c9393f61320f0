"""Nouns to JSON and back. Writing needs the standard library only; reading checks every field through pydantic."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from strategies.errors import ScalingError

T = TypeVar("T")

PLAN_AGAIN = "make it again with `scaling plan`"
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "dataclass_type": "an object in braces",
    "dataclass_exact_type": "an object in braces",
}
"""What pydantic 2 would have taken, by its name for the mistake."""


def to_json(value: Any) -> str:
    """Return a frozen dataclass as indented JSON; enums become their text, tuples become lists."""
    return json.dumps(plain(value), indent=2) + "\n"


def plain(value: Any) -> Any:
    """Return a frozen dataclass as nested dictionaries and lists; nothing is copied that JSON holds as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = ((name, getattr(value, name), is_float) for name, is_float in _fields(type(value)))
        # An int in a field of floats would be read and written again as 8.0.
        return {name: float(each) if is_float and type(each) is int else plain(each) for name, each, is_float in named}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, bool], ...]:
    """Return the name of every field, and whether it is annotated as a float or None."""
    annotated = ((field.name, getattr(field.type, "__name__", field.type)) for field in dataclasses.fields(kind))
    return tuple((name, text in ("float", "float | None")) for name, text in annotated)


def from_json(kind: type[T], text: str, *, source: str, advice: str = PLAN_AGAIN, name: str | None = None) -> T:
    """Return the ``kind`` that ``text`` holds, with every field checked; ``name``: what users call it.

    No type stands for another: ``true`` and ``"8"`` are no numbers, ``"no"`` is no boolean. A whole number is a float.

    Raises:
        ScalingError: not JSON, or a field is missing, unknown or of the wrong type; names ``source`` and the field.
    """
    from pydantic import ValidationError

    try:
        value = _adapter(cast(Any, kind)).validate_json(text, strict=True)
    except ValidationError as error:
        problem = _first_problem(error.errors()[0])
        raise ScalingError(f"{source} is not a valid {name or kind.__name__}: {problem}; {advice}") from error
    # A misspelt key must not pass silently; pydantic drops unknown keys of standard dataclasses.
    if unknown := _unknown_keys(json.loads(text), plain(value)):
        raise ScalingError(f"{source} has unknown keys {', '.join(unknown)}; remove or correct them")
    return cast(T, value)


@cache
def _adapter(kind: type[Any]) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _unknown_keys(given: Any, known: Any, *, path: str = "") -> list[str]:
    """Return the dotted paths of keys in ``given`` that ``known`` does not have."""
    if isinstance(given, dict) and isinstance(known, dict):
        extra = [f"{path}{key}" for key in given if key not in known]
        shared = [key for key in given if key in known]
        return extra + [name for key in shared for name in _unknown_keys(given[key], known[key], path=f"{path}{key}.")]
    if isinstance(given, list) and isinstance(known, list | tuple):
        pairs = enumerate(zip(given, known, strict=False))
        return [name for index, (a, b) in pairs for name in _unknown_keys(a, b, path=f"{path}{index}.")]
    return []


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in a frozen dataclass, with its dotted name; what is true or false is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from numbers(item, f"{path}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for name, _ in _fields(type(value)):
            yield from numbers(getattr(value, name), f"{path}.{name}" if path else name)


def short(number: float) -> str:
    """Return a number as text that fits into a sentence, however many digits somebody gave it.

    >>> short(4096), short(10**30)
    ('4096', '1000000000... (31 digits)')
    """
    text = str(number)
    return text if len(text) <= 24 else f"{text[:10]}... ({len(text)} digits)"


def read_json(kind: type[T], path: Path) -> T:
    """Return the ``kind`` stored at ``path``.

    Raises:
        ScalingError: the file cannot be read or does not hold a valid ``kind``.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScalingError(f"cannot read {path}: {error}; give the path of an existing JSON file") from error
    return from_json(kind, text, source=str(path))


def expected_value(problem: Any) -> str | None:
    """Return what should have been given in the place of one of pydantic's mistakes; None where it is no wrong type."""
    expected: str | None = _EXPECTED.get(problem["type"]) or problem.get("ctx", {}).get("expected")
    return expected


def _first_problem(problem: Any) -> str:
    """Return one mistake in words, with what was given where that is short."""
    where, kind = ".".join(str(part) for part in problem["loc"]) or "the whole file", problem["type"]
    if kind == "json_invalid":
        return f"it is not JSON ({problem['ctx']['error']})"
    if kind == "missing":
        return f"{where} is missing"
    expected = expected_value(problem)
    given = problem.get("input")
    shown = json.dumps(given)[:100] if given is None or isinstance(given, bool | str | int | float) else "..."
    return f"{where}={shown} must be {expected}" if expected else f"{where}={shown}: {problem['msg']}"
