"""Pictures of bytes by cause: at the highest moment of every cell, and of every phase of its step."""

from __future__ import annotations

import textwrap
from typing import Any

from scaling.bench.labels import labels
from scaling.bench.result import CellResult
from scaling.cause_styles import STYLES
from strategies.estimate import CauseBytes, MemoryProfile
from strategies.units import GIB, MIB

COLUMNS = 3
MAX_PANELS = 12
"""Of the picture of phases; more would be too small."""
HEIGHT, APART = 0.32, 0.17
"""Of a bar; a cell has two, so far above and below its place."""
ROOM = 1.2
"""Of the longest bar, for the number behind it."""
PREDICTED = "predicted total"
LINE_HEIGHT = 0.15
"""Inches of a line of a name on an axis."""


def draw_memory(cells: list[CellResult], *, title: str) -> Any:
    """Return two stacks of bytes by cause for each cell: predicted above, measured below."""
    from matplotlib import pyplot

    size, unit = _size(cells)
    names = [textwrap.fill(label, 34) for label in labels(cells)]
    row_height = max(0.62, LINE_HEIGHT * (1.5 + max(name.count("\n") for name in names)))
    figure, axes = pyplot.subplots(figsize=(11, 2.6 + row_height * len(cells)), layout="constrained")
    drawn: set[str] = set()
    longest = 0.0
    for row, each in enumerate(cells):
        predicted, measured = _profiles(each)
        for place, what, profile in ((row - APART, "predicted", predicted), (row + APART, "measured", measured)):
            causes, total = (profile.peak.causes, profile.peak_bytes) if profile else (None, each.peak_bytes or 0)
            drawn |= _stack(axes, causes, total, place, size=size)
            longest = max(longest, total / size)
            axes.annotate(
                f"{what} {total / size:.4g}", (total / size, place), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize=8,
            )  # fmt: skip
    axes.set_yticks(range(len(cells)), names, fontsize=9)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set(xlabel=f"{unit} of live tensors at the highest moment, on the rank that holds most")
    axes.set_title(title, fontsize=10)
    axes.set_xlim(0, ROOM * longest)
    _legend(figure, drawn)
    return figure


def _legend(figure: Any, causes: set[str]) -> None:
    """Put the causes that were drawn under the picture, what lies lowest first; and the line of the prediction."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=cause.replace("_", " "))
        for cause, (colour, hatch) in STYLES.items()
        if cause in causes
    ]
    if PREDICTED in causes:
        handles.append(Line2D([], [], color="black", lw=2, label=PREDICTED))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)


def _profiles(result: CellResult) -> tuple[MemoryProfile | None, MemoryProfile | None]:
    run, prediction = result.lowest_memory, result.cell.prediction
    return prediction.memory if prediction else None, run.measured if run else None


def _stack(axes: Any, causes: CauseBytes | None, total: int, place: float, *, size: int) -> set[str]:
    """Draw one stack, and return its causes; what was counted without any (CUDA's allocator) is one piece."""
    pieces = _pieces(causes) if causes else [("other", total)]
    start = 0.0
    for cause, num_bytes in pieces:
        colour, hatch = STYLES[cause]
        style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0.4, "height": HEIGHT}
        axes.barh(place, num_bytes / size, left=start, **style)
        start += num_bytes / size
    return {cause for cause, _ in pieces}


def _pieces(causes: CauseBytes) -> list[tuple[str, int]]:
    found = causes.by_cause()
    drawn = [(cause, found[cause]) for cause in STYLES if cause != "other" and found.get(cause)]
    rest = causes.total_bytes - sum(num_bytes for _, num_bytes in drawn)
    return [*drawn, ("other", rest)] if rest else drawn


def draw_phases(cells: list[CellResult], *, title: str) -> Any:
    """Return one panel a cell: measured bytes by cause over the phases of the step, and the predicted total."""
    from matplotlib import pyplot

    cells = [each for each in cells if _profiles(each)[1] is not None]
    shown = cells[:MAX_PANELS]
    size, unit = _size(cells)
    columns = min(COLUMNS, max(len(shown), 1))
    rows = -(-len(shown) // columns) or 1
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(4.2 * columns + 1, 3.6 * rows + 1.2), layout="constrained", squeeze=False, sharey=True
    )
    drawn: set[str] = set()
    for axes, each, label in zip(grid.flat, shown, labels(cells), strict=False):
        drawn |= _panel(axes, each, size=size)
        axes.set_title(textwrap.fill(label, 34), fontsize=9)
    for axes in list(grid.flat)[len(shown) :]:
        axes.axis("off")
    highest = max((total for each in shown for total in _totals(each)), default=size)
    for axes in grid[:, 0]:
        axes.set(ylabel=f"{unit} of live tensors", ylim=(0, 1.06 * highest / size))
    _legend(figure, drawn)
    left_out = len(cells) - len(shown)
    figure.suptitle(f"{title}{f' ({left_out} more cells are not drawn)' if left_out else ''}", fontsize=10)
    return figure


def _panel(axes: Any, result: CellResult, *, size: int) -> set[str]:
    """Draw the phases of one cell; return the causes that were drawn."""
    predicted, measured = _profiles(result)
    assert measured is not None, "cells without are left out"
    totals = {phase.phase: phase.total_bytes for phase in predicted.phases} if predicted else {}
    drawn: set[str] = set()
    for place, phase in enumerate(measured.phases):
        start = 0.0
        for cause, num_bytes in _pieces(phase.causes):
            colour, hatch = STYLES[cause]
            style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0.4, "width": 0.7}
            axes.bar(place, num_bytes / size, bottom=start, **style)
            start += num_bytes / size
            drawn.add(cause)
        if total := totals.get(phase.phase):
            axes.plot([place - 0.42, place + 0.42], [total / size] * 2, color="black", lw=2)
            drawn.add(PREDICTED)
    names = [phase.phase.value.replace("_", "\n") for phase in measured.phases]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    return drawn


def _totals(result: CellResult) -> list[int]:
    """Return the bytes of every phase that is drawn, predicted and measured."""
    _, measured = profiles = _profiles(result)
    names = {phase.phase for phase in measured.phases} if measured else set()
    return [phase.total_bytes for each in profiles if each for phase in each.phases if phase.phase in names]


def _size(cells: list[CellResult]) -> tuple[int, str]:
    return (GIB, "GiB") if max(each.peak_bytes or 0 for each in cells) >= GIB else (MIB, "MiB")
