"""The tables and the picture of `benchmarks.scale`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLOURS = ("#332288", "#88CCEE", "#117733", "#CC6677", "#882255")
MARKERS = ("o", "s", "^", "D", "v")
OURS, TORCHS = "ours", "torch"
"""Kinds of `save_cost` that are drawn: both block until the checkpoint is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """Seconds of a whole ``scaling plan``."""

    model: str
    num_params: int
    gpus: int
    exit_code: int
    """3: nothing fits."""
    fastest_s: float
    median_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Fastest optimizer step of one strategy, by micro batches a step."""

    strategy: str
    seconds: Mapping[int, float]

    def line(self) -> tuple[float, float]:
        """Return the seconds of a step beside its micro batches, and of one micro batch (least squares)."""
        slope, offset = statistics.linear_regression(list(self.seconds), list(self.seconds.values()))
        return offset, slope

    def largest_deviation(self) -> float:
        """Return how far a point is from the line, as a share of the point."""
        offset, slope = self.line()
        return max(abs((offset + slope * count) / value - 1) for count, value in self.seconds.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One size on one number of ranks."""

    size: str
    ranks: int
    mib_a_rank: float
    seconds: Mapping[str, float]
    """Until the checkpoint is complete, by kind of save."""


def report(planning: Sequence[Planning], steps: Sequence[Steps], saves: Sequence[Save], *, load: float) -> str:
    """Return the times as Markdown; ``load``: the machine's load average before, much of which makes them doubtful."""
    parts = [
        f"# How times grow\n\nMethod: `benchmarks/scale.py`. Load average of the machine before it began: {load:.1f}.",
        "![times](scale.png)",
        "## Planning: seconds of the whole process\n\nThe fastest run. * nothing fits: what would is searched too.",
        _table(*_planning_cells(planning)),
        "## A step: seconds, by micro batches a step\n\nTwo CPU ranks, micro batches of one sample of 128 tokens.",
        _table(*_steps_cells(steps)),
        "## A save: seconds until complete, by ranks\n\nFrom `save_cost.json`; all ranks share one disk.",
        _table(*_save_cells(saves)),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _planning_cells(planning: Sequence[Planning]) -> tuple[list[str], list[list[str]]]:
    counts = sorted({each.gpus for each in planning})
    times = {(each.model, each.gpus): f"{each.fastest_s:.2f}{'*' if each.exit_code else ''}" for each in planning}
    models = dict.fromkeys(each.model for each in planning)
    return ["model", *(f"{count} GPU{'s'[: count > 1]}" for count in counts)], [
        [model, *(times[model, count] for count in counts)] for model in models
    ]


def _steps_cells(steps: Sequence[Steps]) -> tuple[list[str], list[list[str]]]:
    counts = list(steps[0].seconds)
    rows = []
    for each in steps:
        offset, slope = each.line()
        measured = [f"{each.seconds[count]:.3f}" for count in counts]
        rows.append([each.strategy, *measured, f"{offset:.3f}", f"{slope:.3f}", f"{each.largest_deviation():.1%}"])
    return ["strategy", *map(str, counts), "a step", "a micro batch", "largest deviation from the line"], rows


def _save_cells(saves: Sequence[Save]) -> tuple[list[str], list[list[str]]]:
    kinds = list(saves[0].seconds)
    rows = [
        [each.size, str(each.ranks), f"{each.mib_a_rank:.1f}", *(f"{each.seconds[kind]:.2f}" for kind in kinds)]
        for each in saves
    ]
    return ["parameters", "ranks", "MiB a rank", *kinds], rows


def plot(planning: Sequence[Planning], steps: Sequence[Steps], saves: Sequence[Save], *, path: Path) -> None:
    """Draw the three."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.8), layout="constrained")
    _draw_planning(left, planning)
    _draw_steps(middle, steps)
    _draw_saves(right, saves)
    for axes in (left, middle, right):
        axes.set_ylim(bottom=0)
        axes.grid(lw=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_planning(axes: Any, planning: Sequence[Planning]) -> None:
    models = dict.fromkeys(each.model for each in planning)
    for model, colour, marker in zip(models, COLOURS, MARKERS, strict=False):
        rows = [each for each in planning if each.model == model]
        gpus, times = [each.gpus for each in rows], [each.fastest_s for each in rows]
        axes.plot(gpus, times, color=colour, marker=marker, ms=5, lw=1, label=model)
    axes.set_xscale("log", base=2)
    counts = sorted({each.gpus for each in planning})
    axes.set_xticks(counts, [f"{count}" for count in counts])
    axes.set(xlabel="GPUs", ylabel="seconds, whole process, fastest run", title="Planning")


def _draw_steps(axes: Any, steps: Sequence[Steps]) -> None:
    for each, colour, marker in zip(steps, COLOURS, MARKERS, strict=False):
        offset, slope = each.line()
        counts = list(each.seconds)
        axes.scatter(counts, list(each.seconds.values()), color=colour, marker=marker, s=30, label=each.strategy)
        axes.plot([0, max(counts)], [offset, offset + slope * max(counts)], color=colour, lw=0.8)
    axes.set(
        xlabel="micro batches a step", ylabel="seconds a step", title="Accumulation, two CPU ranks", xlim=(0, None)
    )


def _draw_saves(axes: Any, saves: Sequence[Save]) -> None:
    sizes = dict.fromkeys(each.size for each in saves)
    for size, colour, marker in zip(sizes, COLOURS, MARKERS, strict=False):
        rows = [each for each in saves if each.size == size]
        ranks = [each.ranks for each in rows]
        for kind, style in ((OURS, "-"), (TORCHS, "--")):
            times = [each.seconds[kind] for each in rows]
            label = f"{size} parameters, {kind}"
            axes.plot(ranks, times, style, color=colour, marker=marker, ms=5, lw=1, label=label)
    axes.set_xticks(sorted({each.ranks for each in saves}))
    axes.set(xlabel="ranks, one disk", ylabel="seconds until complete", title="Saving a checkpoint")
