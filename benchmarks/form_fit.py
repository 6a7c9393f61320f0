"""From the bytes of one storage at a few shapes to the product of sizes that it is: exact, or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations

from strategies.memory.features import with_derived_sizes

Form = Mapping[str, Fraction]
"""Bytes as a sum of coefficient x feature."""

_TOKENS = ("B*S", "S", "B", "")
_WIDTHS = ("", "h", "f", "q", "k", "n", "c", "V", "r", "d", "n*r", "c*r", "E", "e", "e*h", "x", "e*x", "s", "R")
_QUADRATIC = ("S*S", "B*S*S", "B*n*S*S", "n*S*S", "B*S*n*X", "B*n*X", "B*n*Y", "B*n*Z", "B*n*Z*D", "B*n*S*Z")
_WEIGHTS = (
    "h*h",
    "h*q",
    "h*k",
    "h*f",
    "V*h",
    "E*h",
    "E*h*x",
    "h*s",
    "d*d",
    "h*x",
    "V*x",
    "G*V",
    "G*h",
    "G",
    "P*h",
    "P",
    "B*x*x",
    "A",
    "A*S",
    "P*n",
    *("R*h", "R*q", "R*k", "R*f"),
)
FEATURES = tuple(
    feature
    for feature in (
        *("*".join(part for part in (tokens, width) if part) or "1" for tokens in _TOKENS for width in _WIDTHS),
        *_QUADRATIC,
        *_WEIGHTS,
    )
)
_LARGEST = 2048
_DENOMINATORS = 32


class UnexplainedBytesError(Exception):
    """No form was found."""


class Fitter:
    """Finds forms at the given shapes; every storage of a trace that repeats is looked up once."""

    def __init__(self, shapes: Sequence[Mapping[str, int]]) -> None:
        """`shapes`: sizes by letter, batch and length included."""
        sizes = [with_derived_sizes(shape) for shape in shapes]
        values = {name: tuple(_product(name, shape) for shape in sizes) for name in FEATURES}
        self._values: dict[str, tuple[int, ...]] = {}
        for name, vector in values.items():
            if all(vector) and vector not in self._values.values() and not self._is_multiple(vector):
                self._values[name] = vector
        self.form = cache(self._form)

    def _is_multiple(self, vector: tuple[int, ...]) -> bool:
        """Whether a feature listed before is the same but for a small factor, as f where it is always 4h."""
        return any(
            _nice(Fraction(vector[0], other[0])) and _proportional(vector, other) for other in self._values.values()
        )

    def _form(self, num_bytes: tuple[int, ...]) -> Form:
        if not any(num_bytes):
            return {}
        for name, vector in self._values.items():
            ratio = Fraction(num_bytes[0], vector[0])
            if _nice(ratio) and _proportional(num_bytes, vector):
                return {name: ratio}
        for (first, one), (second, two) in combinations(self._values.items(), 2):
            if found := _pair(num_bytes, one, two):
                return dict(zip((first, second), found, strict=True))
        raise UnexplainedBytesError(f"{num_bytes} bytes are no product of sizes")


def _pair(target: Sequence[int], one: Sequence[int], two: Sequence[int]) -> tuple[Fraction, Fraction] | None:
    determinant = one[0] * two[1] - one[1] * two[0]
    other = 1
    if not determinant:
        determinant, other = one[0] * two[2] - one[2] * two[0], 2
    if not determinant:
        return None
    top = target[0] * two[other] - target[other] * two[0]
    if (top * _DENOMINATORS) % determinant:
        return None
    first = Fraction(top, determinant)
    second = Fraction(one[0] * target[other] - one[other] * target[0], determinant)
    if not (_nice(abs(first)) and _nice(abs(second))) or first <= 0 > second:
        return None
    matches = all(first * a + second * b == t for t, a, b in zip(target, one, two, strict=True))
    return (first, second) if matches else None


def _nice(ratio: Fraction) -> bool:
    return 0 < ratio <= _LARGEST and _DENOMINATORS % ratio.denominator == 0


def _proportional(one: Sequence[int], two: Sequence[int]) -> bool:
    return all(a * two[0] == b * one[0] for a, b in zip(one, two, strict=True))


def _product(name: str, sizes: Mapping[str, int]) -> int:
    product = 1
    for letter in name.split("*"):
        product *= 1 if letter == "1" else sizes[letter]
    return product
