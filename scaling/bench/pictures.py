"""Pictures of a bench: throughput, memory against step time, predicted against measured. Units stand on the axes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaling.bench.labels import labels, shared
from scaling.bench.picture_memory import LINE_HEIGHT, draw_memory, draw_phases
from scaling.bench.result import Bench, CellResult
from scaling.errors import ReportError
from scaling.plan_pictures import MARKERS
from scaling.plots import save_picture
from strategies.plan import StrategyName
from strategies.units import GIB, MIB

COLOURS = {
    StrategyName.DDP: "#332288",
    StrategyName.ZERO1: "#88CCEE",
    StrategyName.ZERO2: "#44AA99",
    StrategyName.ZERO3: "#DDCC77",
    StrategyName.FSDP2: "#CC6677",
    StrategyName.MIRRORED: "#AA4499",
}
"""Of Paul Tol's "muted" palette, told apart without colour vision; every strategy has a marker of its own besides."""
MAX_NAMED = 12
"""Points whose names stand beside them; more would lie over each other."""
LABEL_WIDTH, MODEL_WIDTH = 34, 50
GREY = "#777777"
NEAR = 0.05
"""Half width of the band around equality."""


def pictures(bench: Bench) -> dict[str, Callable[[], Any]]:
    """Return by file name what draws each picture that has something to show, as a pyplot figure."""
    done = [each for each in bench.cells if each.done]
    metered = [each for each in done if each.peak_bytes and each.predicted_peak_bytes]
    found: dict[str, Callable[[], Any]] = {}
    if metered:
        found["memory"] = lambda: draw_memory(metered, title=_title("Peak memory of one rank", metered))
    if done:
        found["throughput"] = lambda: draw_throughput(done)
    if metered:
        found["pareto"] = lambda: draw_pareto(metered)
        found["predicted"] = lambda: draw_predicted(metered)
        found["phases"] = lambda: draw_phases(
            metered, title=_title("Measured at every phase's highest moment", metered)
        )
    return found


DESCRIBED = {
    "memory": "Bytes by cause at the highest moment, predicted and measured, for every cell",
    "throughput": "Tokens per second of every cell, with the range over all timed steps",
    "pareto": "Peak memory against step time of every cell",
    "predicted": "Predicted against measured: peak memory and, where it is predicted, step time",
    "phases": "Bytes by cause at the highest moment of every phase of the step, and the predicted total",
}


def write_pictures(bench: Bench, folder: Path) -> list[Path]:
    """Write the pictures as PNG files into ``folder``; return their paths.

    Raises:
        ReportError: nothing was measured, or a file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    drawn = pictures(bench)
    if not drawn:
        raise ReportError("no run has ended well, so there is nothing to draw; the table says why")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"cannot make the folder {folder}: {error.strerror}; give another --plot") from error
    paths = []
    for name, draw in drawn.items():
        paths.append(folder / f"{name}.png")
        save_picture(draw(), paths[-1])
    return paths


def _title(what: str, cells: list[CellResult]) -> str:
    first = cells[0]
    path = Path(first.cell.model)
    model = path.parent.name if path.name == "config.json" else path.name
    if len(model) > MODEL_WIDTH:
        model = f"{model[: MODEL_WIDTH - 3]}..."
    model = model.replace("$", r"\$")  # two of them would be read as a formula
    facts = f"{model} on {first.cell.gpus} ranks, {first.environment.device}"
    return f"{what}: {facts}\n{shared(cells)}"


def wrapped(label: str) -> str:
    """Return a label in lines that are short enough for an axis."""
    return textwrap.fill(label, LABEL_WIDTH)


def draw_throughput(cells: list[CellResult]) -> Any:
    """Return tokens a second as bars, with a line from the slowest to the fastest timed step."""
    from matplotlib import pyplot

    names = [wrapped(label) for label in labels(cells)]
    row_height = max(0.5, LINE_HEIGHT * (1.5 + max(name.count("\n") for name in names)))
    figure, axes = pyplot.subplots(figsize=(9, 1.6 + row_height * len(cells)), layout="constrained")
    rates = [each.tokens_per_s or 0.0 for each in cells]
    for row, (each, rate) in enumerate(zip(cells, rates, strict=True)):
        tokens = each.cell.tokens_per_step
        slow, fast = tokens / max(each.step_times_s), tokens / min(each.step_times_s)
        axes.barh(row, rate, color=COLOURS[each.cell.choice.strategy], edgecolor="black", lw=0.5, height=0.6)
        axes.plot([slow, fast], [row, row], color="black", lw=1.4, marker="|", markersize=9)
        axes.annotate(f"{rate:,.0f}", (max(fast, rate), row), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(cells)), names, fontsize=9)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set(xlabel="tokens/s of all ranks: median (bar), slowest and fastest timed step (line)")
    axes.set_title(_title("Throughput", cells), fontsize=10)
    axes.set_xlim(0, 1.15 * max(each.cell.tokens_per_step / min(each.step_times_s) for each in cells))
    return figure


def draw_pareto(cells: list[CellResult]) -> Any:
    """Return memory against step time; a line joins the cells that no other beats in both."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6), layout="constrained")
    unit, size = _unit(cells)
    points = [((each.peak_bytes or 0) / size, each.median_step_s or 0.0) for each in cells]
    front = pareto_front(points)
    axes.plot(*zip(*front, strict=True), color=GREY, lw=1, ls="--", label="no cell has less of both")
    for each, point in zip(cells, points, strict=True):
        _point(axes, each, point)
    for each, label, point in zip(cells, labels(cells), points, strict=True):
        if len(cells) <= MAX_NAMED and label != each.cell.choice.strategy:
            axes.annotate(label, point, xytext=(8, 6), textcoords="offset points", fontsize=8)
    _strategy_legend(axes, cells)
    axes.set(xlabel=f"measured peak of one rank, {unit}", ylabel="seconds of one optimizer step (median)")
    axes.set_title(_title("Memory against time", cells), fontsize=10)
    axes.set_xlim(0, 1.3 * max(memory for memory, _ in points))  # names stand to the right of points
    axes.set_ylim(0, 1.15 * max(seconds for _, seconds in points))
    axes.grid(alpha=0.3)
    return figure


def pareto_front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in both numbers, by the first one.

    >>> pareto_front([(1.0, 5.0), (2.0, 2.0), (3.0, 3.0)])
    [(1.0, 5.0), (2.0, 2.0)]
    """
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def draw_predicted(cells: list[CellResult]) -> Any:
    """Return predicted against measured peaks and, where step times are predicted, those."""
    from matplotlib import pyplot

    timed = [each for each in cells if each.predicted_step_s]
    figure, places = pyplot.subplots(
        1, 2 if timed else 1, figsize=(13 if timed else 7.5, 6), layout="constrained", squeeze=False
    )
    unit, size = _unit(cells)
    peaks = [((each.predicted_peak_bytes or 0) / size, (each.peak_bytes or 0) / size) for each in cells]
    _draw_equality(places[0][0], cells, peaks, what=f"peak of one rank, {unit}")
    if timed:
        times = [(each.predicted_step_s or 0.0, each.median_step_s or 0.0) for each in timed]
        _draw_equality(places[0][1], timed, times, what="seconds of one step")
    _strategy_legend(places[0][0], cells)
    figure.suptitle(_title("Predicted against measured", cells), fontsize=10)
    return figure


def _draw_equality(axes: Any, cells: list[CellResult], points: list[tuple[float, float]], *, what: str) -> None:
    low = 0.9 * min(min(point) for point in points)
    high = 1.1 * max(max(point) for point in points)
    line = [low, high]
    axes.plot(line, line, color="black", lw=1)
    axes.fill_between(
        line, [(1 - NEAR) * each for each in line], [(1 + NEAR) * each for each in line], color=GREY, alpha=0.25, lw=0
    )
    for each, point in zip(cells, points, strict=True):
        _point(axes, each, point)
    axes.set(xlabel=f"predicted {what}", ylabel=f"measured {what}", xlim=line, ylim=line, aspect="equal")
    axes.annotate(f"line: equal; band: ± {NEAR:.0%}", (0.98, 0.02), xycoords="axes fraction", ha="right", fontsize=8.5)
    axes.grid(alpha=0.3)


def _point(axes: Any, result: CellResult, point: tuple[float, float]) -> None:
    strategy = result.cell.choice.strategy
    axes.plot(
        *point,
        ls="",
        marker=MARKERS[strategy],
        markersize=14 - 1.2 * list(COLOURS).index(strategy),  # equal ones stay visible under each other
        color=COLOURS[strategy],
        mec="black",
    )


def _strategy_legend(axes: Any, cells: list[CellResult]) -> None:
    """Add an entry for each strategy, once; what has a label already stays."""
    for strategy in dict.fromkeys(each.cell.choice.strategy for each in cells):
        axes.plot(
            [], [], ls="", marker=MARKERS[strategy], markersize=9, color=COLOURS[strategy], mec="black", label=strategy
        )
    axes.legend(frameon=False, fontsize=9)


def _unit(cells: list[CellResult]) -> tuple[str, int]:
    return ("GiB", GIB) if max(each.peak_bytes or 0 for each in cells) >= GIB else ("MiB", MIB)
