"""Whether the keywords of a call are of the types that its signature names: Python itself does not look."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from strategies.errors import PlanError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
MAX_BITS = 2**13
"""Of a whole number that is passed on: Python prints no number of more than 4300 digits."""
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Kind:
    """One part of an annotation."""

    words: str
    holds: Callable[[Any], bool]
    """Whether a value is of this kind."""


KINDS = {
    "int": Kind("a whole number", lambda value: _is_int(value) and value.bit_length() <= MAX_BITS),
    "float": Kind("a number", lambda value: isinstance(value, float) or (_is_int(value) and _fits_float(value))),
    "bool": Kind("True or False", lambda value: isinstance(value, bool)),
    "str": Kind("text", lambda value: isinstance(value, str)),
    "Sequence[str]": Kind("a list of text", lambda value: isinstance(value, list | tuple) and all(map(_is_str, value))),
    "None": Kind("None", lambda value: value is None),
}


def checks_keywords(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return ``function``, which now refuses keywords of other types than it is annotated with.

    As for type checkers a whole number is a float too; unlike there ``True`` is no number. Only keywords whose
    annotation is text (``from __future__ import annotations``) and made of `KINDS` are looked at.

    Raises:
        PlanError: when it is called; names every such keyword, its value and what to give.
    """

    @wraps(function)
    def checked(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        annotations = function.__annotations__
        problems = [_problem(name, value, annotations.get(name, "")) for name, value in keywords.items()]
        if found := [problem for problem in problems if problem is not None]:
            raise PlanError(". ".join(found))
        return function(*arguments, **keywords)

    return checked


def _problem(name: str, value: object, annotation: str) -> str | None:
    kinds = [KINDS.get(part) for part in annotation.split(" | ")]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds) or any(kind.holds(value) for kind in known):
        return None
    return f"{name}={_shown(value)} ({type(value).__name__}) cannot be used; give {' or '.join(k.words for k in known)}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fits_float(value: int) -> bool:
    return abs(value) <= sys.float_info.max


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _shown(value: object) -> str:
    text = hex(value) if isinstance(value, int) and value.bit_length() > MAX_BITS else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
