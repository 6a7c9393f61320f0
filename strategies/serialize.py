"""Nouns to JSON and back. Writing needs the standard library only; reading checks every field through pydantic."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, TypeVar

from strategies.errors import ScalingError

T = TypeVar("T")


def to_json(value: Any) -> str:
    """Return a frozen dataclass as indented JSON; enums become their text, tuples become lists."""
    return json.dumps(dataclasses.asdict(value), indent=2) + "\n"


def from_json(kind: type[T], text: str, *, source: str) -> T:
    """Return the ``kind`` that ``text`` holds, with every field checked.

    Raises:
        ScalingError: not JSON, or a field is missing, unknown or of the wrong type; names ``source`` and the field.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise ScalingError(f"{source} is not a valid {kind.__name__}: {_first_problem(error.errors()[0])}") from error


def read_json(kind: type[T], path: Path) -> T:
    """Return the ``kind`` stored at ``path``.

    Raises:
        ScalingError: the file cannot be read or does not hold a valid ``kind``.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScalingError(f"cannot read {path}: {error}; give the path of an existing JSON file") from error
    return from_json(kind, text, source=str(path))


def _first_problem(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"]) or "the whole file"
    given = problem.get("input")
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) and str(given) != "" else ""
    if isinstance(given, float) and not math.isfinite(given):
        shown = f" (given: {given})"
    return f"{where}: {problem['msg']}{shown[:120]}; make it again with `scaling plan`"
