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
HALF = 0.36
"""Height of a bar; a cell has two."""


def draw_memory(cells: list[CellResult], *, title: str) -> Any:
    """Return two stacks of bytes by cause for each cell: predicted above, measured below."""
    from matplotlib import pyplot

    size, unit = _size(cells)
    figure, axes = pyplot.subplots(figsize=(11, 2.6 + 0.62 * len(cells)), layout="constrained")
    labelled: set[str] = set()
    for row, each in enumerate(cells):
        predicted, measured = _profiles(each)
        for place, what, profile in ((row - HALF / 2, "predicted", predicted), (row + HALF / 2, "measured", measured)):
            causes, total = (profile.peak.causes, profile.peak_bytes) if profile else (None, each.peak_bytes or 0)
            _stack(axes, causes, total, place, size=size, labelled=labelled)
            axes.annotate(
                f"{what} {total / size:.4g}", (total / size, place), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize=8,
            )  # fmt: skip
    axes.set_yticks(range(len(cells)), [textwrap.fill(label, 34) for label in labels(cells)], fontsize=9)
    axes.invert_yaxis()
    axes.set(xlabel=f"{unit} of live tensors at the highest moment, on the rank that holds most")
    axes.set_title(title, fontsize=10)
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16 - 0.5 / len(cells)), ncols=4, frameon=False, fontsize=9)
    return figure


def _profiles(result: CellResult) -> tuple[MemoryProfile | None, MemoryProfile | None]:
    run, decision = result.lowest_memory, result.cell.decision
    return decision.estimate.memory if decision else None, run.measured if run else None


def _stack(axes: Any, causes: CauseBytes | None, total: int, place: float, *, size: int, labelled: set[str]) -> None:
    """Draw one stack; what was counted without causes (CUDA's allocator) is one piece."""
    pieces = _pieces(causes) if causes else []
    known = sum(num_bytes for _, num_bytes in pieces)
    if total > known:
        pieces.append(("other", total - known))
    start = 0.0
    for cause, num_bytes in pieces:
        colour, hatch = STYLES[cause]
        name = cause.replace("_", " ")
        label = None if name in labelled else name
        labelled.add(name)
        axes.barh(
            place, num_bytes / size, left=start, color=colour, hatch=hatch, edgecolor="white", lw=0.4, height=HALF,
            label=label,
        )  # fmt: skip
        start += num_bytes / size


def _pieces(causes: CauseBytes) -> list[tuple[str, int]]:
    found = causes.by_cause()
    drawn = [(cause, found[cause]) for cause in STYLES if cause != "other" and found.get(cause)]
    rest = causes.total_bytes - sum(num_bytes for _, num_bytes in drawn)
    return [*drawn, ("other", rest)] if rest else drawn


def draw_phases(cells: list[CellResult], *, title: str) -> Any:
    """Return one panel a cell: measured bytes by cause over the phases of the step, and the predicted total."""
    from matplotlib import pyplot

    shown = [each for each in cells if _profiles(each)[1] is not None][:MAX_PANELS]
    size, unit = _size(cells)
    columns = min(COLUMNS, max(len(shown), 1))
    rows = -(-len(shown) // columns) or 1
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(4.2 * columns + 1, 3.6 * rows + 1.2), layout="constrained", squeeze=False, sharey=True
    )
    labelled: set[str] = set()
    for axes, each, label in zip(grid.flat, shown, labels(cells)[: len(shown)], strict=False):
        _panel(axes, each, size=size, labelled=labelled)
        axes.set_title(textwrap.fill(label, 34), fontsize=9)
    for axes in list(grid.flat)[len(shown) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel(f"{unit} of live tensors")
    handles = {
        name: handle for axes in grid.flat for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    left_out = len(cells) - len(shown)
    figure.suptitle(f"{title}{f' ({left_out} more cells are not drawn)' if left_out else ''}", fontsize=10)
    return figure


def _panel(axes: Any, result: CellResult, *, size: int, labelled: set[str]) -> None:
    predicted, measured = _profiles(result)
    assert measured is not None, "cells without are left out"
    totals = {phase.phase: phase.total_bytes for phase in predicted.phases} if predicted else {}
    for place, phase in enumerate(measured.phases):
        start = 0.0
        for cause, num_bytes in _pieces(phase.causes):
            colour, hatch = STYLES[cause]
            label = None if cause in labelled else cause.replace("_", " ")
            labelled.add(cause)
            axes.bar(
                place, num_bytes / size, bottom=start, color=colour, hatch=hatch, edgecolor="white", lw=0.4, width=0.7,
                label=label,
            )  # fmt: skip
            start += num_bytes / size
        if total := totals.get(phase.phase):
            label = None if "predicted" in labelled else "predicted total"
            labelled.add("predicted")
            axes.plot([place - 0.42, place + 0.42], [total / size] * 2, color="black", lw=2, label=label)
    names = [phase.phase.value.replace("_", "\n") for phase in measured.phases]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.margins(y=0.08)


def _size(cells: list[CellResult]) -> tuple[int, str]:
    return (GIB, "GiB") if max(each.peak_bytes or 0 for each in cells) >= GIB else (MIB, "MiB")
