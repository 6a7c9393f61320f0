"""Pictures of a decision: bytes by cause of each strategy's best plan, and memory against step time."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from scaling.errors import ReportError
from scaling.plan_bars import Bar, bars, pieces
from scaling.plots import svg_text
from strategies.decision import Decision, RankedPlan
from strategies.explain import at_safety, describe_kind, describe_variant
from strategies.job import LossImplementation
from strategies.plan import Plan, StrategyName
from strategies.units import GIB, MIB, format_bytes

MARKERS = {
    StrategyName.DDP: "o",
    StrategyName.ZERO1: "s",
    StrategyName.ZERO2: "D",
    StrategyName.ZERO3: "^",
    StrategyName.FSDP2: "P",
    StrategyName.MIRRORED: "X",
}
CHOSEN, OTHER, GREY = "#332288", "#44AA99", "#999999"
LABEL_WIDTH = 30
MAX_NUMBERED = 8
"""Of the front, so that numbers and their list stay legible."""
LINE_INCHES = 0.2
"""Height of a line of a legend."""
LEGEND_WIDTH = 84
"""Letters in a line of it."""
FILE_TYPES = (".png", ".svg", ".pdf")
"""Those that are drawn the same everywhere; matplotlib knows more, some of them lossy or of no use for this."""


def plot_decision(decision: Decision, *, path: Path) -> None:
    """Write a picture of the decision; the ending of ``path`` says the format.

    Raises:
        ReportError: the ending is not one of `FILE_TYPES`, or the file cannot be written.
    """
    require_file_type(path)
    figure = _figure(decision)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ReportError(f"cannot write the picture {path}: {error}; give a writable file") from error
    finally:
        _close(figure)


def require_file_type(path: Path) -> None:
    """Refuse a picture of another type.

    Raises:
        ReportError: the ending is not one of `FILE_TYPES`.
    """
    if path.suffix.lower() not in FILE_TYPES:
        raise ReportError(f"cannot draw the picture {path}: its ending must be one of {', '.join(FILE_TYPES)}")


def svg_of(decision: Decision) -> str:
    """Return the picture as one ``<svg>`` element that needs nothing from anywhere."""
    return svg_text(lambda: _figure(decision))


def _figure(decision: Decision) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown, front = bars(decision), [each for each in decision.front if each.time is not None]
    rows = [max(1.4 + 0.72 * len(shown), 3.6), 0.3 + LINE_INCHES * (MAX_NUMBERED + 3 if front else 5)]
    figure = pyplot.figure(figsize=(16 if front else 9, sum(rows) + 0.6), layout="constrained")
    columns = {"width_ratios": (1.1, 1)} if front else {}
    grid = figure.add_gridspec(2, 2 if front else 1, height_ratios=rows, **columns)
    left = figure.add_subplot(grid[0, 0])
    _draw_bars(left, shown, decision)
    _legend_below(figure.add_subplot(grid[1, 0]), left, columns=3)
    if front:
        right = figure.add_subplot(grid[0, 1])
        _draw_front(right, front, decision)
        _legend_below(figure.add_subplot(grid[1, 1]), right, columns=1)
    cluster, job = decision.cluster, decision.job
    figure.suptitle(
        f"{decision.model} on {cluster.gpus} x {cluster.gpu.name}: {job.precision}, sequence {job.seq_len}, "
        f"global batch {job.global_batch_size}"
    )
    return figure


def _close(figure: Any) -> None:
    from matplotlib import pyplot

    pyplot.close(figure)


def _draw_bars(axes: Any, shown: list[Bar], decision: Decision) -> None:
    """Draw one stack a plan, the memory line, and a whisker to what the plan needs at the decision's safety."""
    usable = decision.cluster.gpu.memory_bytes
    unit, size = ("GiB", GIB) if usable >= GIB else ("MiB", MIB)
    labelled: set[str] = set()
    for row, bar in enumerate(shown):
        start = 0.0
        for name, num_bytes, colour, hatch in pieces(bar):
            label = None if name in labelled else name
            labelled.add(name)
            axes.barh(
                row,
                num_bytes / size,
                left=start,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                label=label,
                height=0.62,
            )
            start += num_bytes / size
        axes.plot([start, bar.needed_bytes / size], [row, row], color="black", lw=1.2)
        axes.plot([bar.needed_bytes / size], [row], color="black", marker="|", markersize=11)
    axes.axvline(usable / size, color="black", ls="--", lw=1.2)
    axes.annotate(
        f"one GPU: {format_bytes(usable)}",
        xy=(usable / size, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
    )
    _label_rows(axes, shown)
    axes.set(xlabel=f"{unit} on one GPU at the highest moment; the thin line ends at {_need(decision)}")
    axes.set_xlim(0, 1.05 * max(usable, *(bar.needed_bytes for bar in shown)) / size)


def _legend_below(place: Any, axes: Any, *, columns: int) -> None:
    """Put the legend of ``axes`` into a place of its own, where it hides nothing."""
    place.axis("off")
    legend = place.legend(
        *axes.get_legend_handles_labels(), loc="upper left", ncols=columns, frameon=False, fontsize=8.5
    )
    legend.set_in_layout(False)  # its width must not take room from the picture above


def _need(decision: Decision) -> str:
    return f"what is needed{at_safety(decision.safety)}" if decision.safety else "the point estimate"


def _label_rows(axes: Any, shown: list[Bar]) -> None:
    labels = [_label(bar) for bar in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=9)
    for text, bar in zip(axes.get_yticklabels(), shown, strict=True):
        text.set_fontweight("bold" if bar.is_chosen else "normal")
        text.set_color("black" if bar.fits else "#666666")
    axes.invert_yaxis()


def _label(bar: Bar) -> str:
    state = "chosen: " if bar.is_chosen else ("" if bar.fits else "too large: ")
    if bar.is_lower_bound:
        state = "too large, at least: "
    kind = describe_kind(bar.plan)
    rest = _short(bar.plan, bar.loss).removeprefix(kind).removeprefix(", ")
    return "\n".join([state + kind, *textwrap.wrap(rest, LABEL_WIDTH)])


def _short(plan: Plan, loss: LossImplementation) -> str:
    """Return a plan as a phrase that ends with micro batch x accumulation, which no line break parts."""
    return f"{describe_variant(plan, loss)}, {plan.micro_batch_size}\u00a0x\u00a0{plan.gradient_accumulation_steps}"


def _draw_front(axes: Any, front: list[RankedPlan], decision: Decision) -> None:
    """Draw memory against step time: plans of which none is faster with less memory, and others that fit."""
    points = [(each.device_bytes / GIB, each.time.total_s) for each in front if each.time]
    on_front = {each.plan for each in front}
    others = [
        (each.device_bytes / GIB, each.time.total_s)
        for each in decision.alternatives
        if each.time is not None and each.plan not in on_front
    ]
    axes.plot(*zip(*points, strict=True), color=GREY, lw=1)
    numbers = numbered(len(front))
    for place, (each, point) in enumerate(zip(front, points, strict=True)):
        number = numbers.get(place)
        _draw_point(axes, each, point, number=number, is_chosen=each.plan == decision.plan)
    if others:
        axes.plot(*zip(*others, strict=True), ls="", marker="o", mfc="none", mec=GREY, label="other plans that fit")
    axes.axvline(decision.cluster.gpu.memory_bytes / GIB, color="black", ls="--", lw=1.2)
    axes.set(xlabel="GiB that the plan needs (point estimate)", ylabel="seconds of one optimizer step")
    axes.set_title("Memory against time (micro batch x accumulation last)", fontsize=10)
    axes.margins(y=0.15)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def numbered(count: int) -> dict[int, int]:
    """Return the number of each place of the front that gets one: the ends, and others evenly between them.

    >>> numbered(3)
    {0: 1, 1: 2, 2: 3}
    """
    if count <= MAX_NUMBERED:
        return {place: place + 1 for place in range(count)}
    step = (count - 1) / (MAX_NUMBERED - 1)
    return {round(step * number): number + 1 for number in range(MAX_NUMBERED)}


def _draw_point(
    axes: Any, ranked: RankedPlan, point: tuple[float, float], *, number: int | None, is_chosen: bool
) -> None:
    label = None
    if number is not None:
        label = textwrap.fill(f"{number}  {_short(ranked.plan, ranked.loss)}", LEGEND_WIDTH, subsequent_indent="    ")
        above = number % 2  # neighbours may be close
        offset = (0, 11 if above else -21)
        axes.annotate(str(number), point, xytext=offset, textcoords="offset points", ha="center", fontweight="bold")
    axes.plot(
        *point,
        ls="",
        marker=MARKERS[ranked.plan.strategy],
        markersize=12 if is_chosen else (8 if number else 5),
        color=CHOSEN if is_chosen else OTHER,
        mec="black",
        label=label,
    )
