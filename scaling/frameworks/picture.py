"""Both runs of a comparison as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaling.frameworks.result import FrameworkComparison, FrameworkRun
from scaling.plots import save_picture
from strategies.units import MIB

STYLES = {"pytorch": ("#d55e00", "-"), "tensorflow": ("#0072b2", "--")}
"""Of Okabe and Ito's palette, and told apart without colour too."""


def plot_comparison(comparison: FrameworkComparison, *, path: Path) -> None:
    """Write a PNG of losses, speed, times and memory.

    Raises:
        ReportError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ((losses, speed), (times, memory)) = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")
    for run in comparison.runs:
        steps = range(1, len(run.losses) + 1)
        colour, dashes = STYLES[run.framework.value]
        style: dict[str, Any] = {"color": colour, "ls": dashes, "lw": 1.5, "label": run.framework.value}
        losses.plot(steps, run.losses, **style)
        rates = [run.job.tokens_per_step / seconds for seconds in run.step_times_s]
        speed.plot(list(steps)[comparison.warm_up_steps :], rates[comparison.warm_up_steps :], **style)
    losses.set(title="loss, nats a token", xlabel="optimizer steps")
    losses.legend(frameon=False)
    speed.set(title=f"tokens/s, after {comparison.warm_up_steps} steps", xlabel="optimizer steps", ylim=(0, None))
    _bars(times, comparison, {"start-up": "start_up_s", "compile": "compile_s"}, title="seconds before training runs")
    sizes = {"predicted,\na device": "predicted_peak_bytes"}
    if all(run.peak_device_bytes is not None for run in comparison.runs):
        sizes["measured,\na device"] = "peak_device_bytes"
    sizes["resident,\nall processes"] = "peak_resident_bytes"
    _bars(memory, comparison, sizes, title="peak memory, MiB", unit=MIB)
    cluster = comparison.cluster
    figure.suptitle(f"{comparison.model} on {cluster.gpus} x {cluster.gpu.name}, the same steps in both frameworks")
    save_picture(figure, path)


def _bars(axes: Any, comparison: FrameworkComparison, fields: dict[str, str], *, title: str, unit: int = 1) -> None:
    """Draw a group of bars for each field, one bar a framework."""
    for place, run in enumerate(comparison.runs):
        values = [_number(run, field) / unit for field in fields.values()]
        where = [group + 0.4 * place - 0.2 for group in range(len(fields))]
        colour, _ = STYLES[run.framework.value]
        hatch = "//" if place else ""
        bars = axes.bar(where, values, width=0.38, color=colour, hatch=hatch, edgecolor="white")
        axes.bar_label(bars, [f"{value:,.0f}" if value >= 100 else f"{value:.2g}" for value in values], fontsize=8)
    axes.set_xticks(range(len(fields)), list(fields))
    axes.set(title=title)
    axes.margins(y=0.12)


def _number(run: FrameworkRun, field: str) -> float:
    value: float = getattr(run, field)
    return value
