"""The picture of the regret benchmark."""

from __future__ import annotations

from pathlib import Path

COLOURS = ("#332288", "#CC6677", "#117733")
MARKERS = ("o", "s", "^")


def plot(models: list[tuple[str, list[tuple[float, float]]]], budgets: list[tuple[str, float]], *, path: Path) -> None:
    """Draw (predicted, measured) seconds of every plan, and the ratio of every budget."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5.5), layout="constrained")
    for (name, points), colour, marker in zip(models, COLOURS, MARKERS, strict=False):
        predicted, measured = zip(*points, strict=True)
        left.scatter(predicted, measured, s=22, alpha=0.75, color=colour, marker=marker, label=name)
    both = [value for _, points in models for point in points for value in point]
    ends = [min(both) * 0.9, max(both) * 1.1]
    left.plot(ends, ends, color="black", lw=0.8)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="predicted, seconds a step",
        ylabel="measured, seconds a step",
        title="Every plan on two CPU ranks",
    )
    left.legend(frameon=False)
    labels, ratios = zip(*budgets, strict=True)
    right.barh(range(len(ratios)), ratios, color="#44AA99")
    right.set_yticks(range(len(labels)), labels, fontsize=8)
    right.invert_yaxis()
    right.axvline(0.9, color="black", ls="--", lw=0.8)
    right.axvline(0.97, color="black", ls=":", lw=0.8)
    for place, ratio in enumerate(ratios):
        right.text(ratio + 0.002, place, f"{ratio:.3f}", ha="left", va="center", fontsize=8)
    right.set(
        xlim=(min(0.85, *ratios) - 0.02, 1.025),
        xlabel="throughput: chosen plan / best measured plan (dashed: 0.90, dotted: 0.97)",
        title="The planner's choice for each model and memory",
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
