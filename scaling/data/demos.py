"""Labelled data that is always there: pieces of the standard library's source, and drawn shapes with captions."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling.data.errors import DataError

MODULES = ("asyncio", "email", "multiprocessing", "unittest")
"""Packages of the standard library that every installation of Python has, of about the same size."""
SNIPPET_CHARS = 400
"""Enough to recognise a package by its names."""

SHAPES = ("circle", "square", "triangle", "cross")
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 210, 40),
    "purple": (150, 50, 180),
    "white": (240, 240, 240),
}
PICTURE_SIZE = 64
"""Pixels of a drawn picture's side."""


def module_snippets() -> list[tuple[str, int]]:
    """Return (piece of source, index of its package in `MODULES`) of every piece, package by package.

    Raises:
        DataError: this Python came without the source of its library.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found = [
        (text[start : start + SNIPPET_CHARS], label)
        for label, module in enumerate(MODULES)
        for path in sorted((root / module).glob("*.py"))
        for text in [path.read_text(encoding="utf-8", errors="replace")]
        for start in range(0, len(text) - SNIPPET_CHARS // 2, SNIPPET_CHARS)
    ]
    if {label for _, label in found} != set(range(len(MODULES))):
        raise DataError(f"the source of {', '.join(MODULES)} is not under {root}; name labelled data of your own")
    return found


def shape_words(index: int) -> tuple[int, int, str]:
    """Return of picture ``index`` its places in `SHAPES` and `COLOURS`, and its caption."""
    shape, colour, _ = _drawn(index)
    return shape, colour, f"a {list(COLOURS)[colour]} {SHAPES[shape]}"


def shape_picture(index: int) -> NDArray[np.uint8]:
    """Return picture ``index``: one shape somewhere on noise, shape (height, width, 3)."""
    shape, colour, random = _drawn(index)
    radius = random.uniform(0.2, 0.35) * PICTURE_SIZE
    centre = random.uniform(radius, PICTURE_SIZE - radius, size=2)
    picture = random.integers(0, 60, size=(PICTURE_SIZE, PICTURE_SIZE, 3), dtype=np.uint8)
    rows, columns = np.mgrid[:PICTURE_SIZE, :PICTURE_SIZE]
    down, right = (rows - centre[0]) / radius, (columns - centre[1]) / radius
    inside = {
        "circle": down**2 + right**2 <= 1,
        "square": np.maximum(abs(down), abs(right)) <= 0.8,
        "triangle": (down <= 0.8) & (2 * abs(right) <= down + 1),
        "cross": (np.minimum(abs(down), abs(right)) <= 0.25) & (np.maximum(abs(down), abs(right)) <= 1),
    }
    picture[inside[SHAPES[shape]]] = list(COLOURS.values())[colour]
    return picture


def _drawn(index: int) -> tuple[int, int, np.random.Generator]:
    """Return shape, colour, and the numbers that place them: all from the index alone."""
    random = np.random.default_rng(index)
    return int(random.integers(len(SHAPES))), int(random.integers(len(COLOURS))), random
