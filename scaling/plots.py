"""Pictures: memory over time stacked by cause, with the highest moment marked."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling.cause_styles import STYLES
from scaling.errors import ReportError
from strategies.units import GIB, MIB, format_bytes

if TYPE_CHECKING:  # brings torch
    from scaling.meter.timeline import Timeline

REPRODUCIBLE: dict[Any, Any] = {"svg.hashsalt": "memory-scaling", "svg.fonttype": "path"}
"""The same data give the same bytes, on any machine's fonts."""


def plot_timeline(timeline: Timeline, *, title: str, path: Path) -> None:
    """Write a PNG of bytes by cause over the operators of a run.

    Raises:
        ReportError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    unit, size = ("GiB", GIB) if timeline.peak_bytes >= GIB else ("MiB", MIB)
    figure, axes = pyplot.subplots(figsize=(11, 5.5), layout="constrained")
    causes = [cause for cause in STYLES if any(timeline.bytes_by_cause[cause])]
    stacks = [[value / size for value in timeline.bytes_by_cause[cause]] for cause in causes]
    bands = axes.stackplot(timeline.events, stacks, labels=[cause.replace("_", " ") for cause in causes], lw=0.3)
    for cause, band in zip(causes, bands, strict=True):
        colour, hatch = STYLES[cause]
        band.set_facecolor(colour)
        band.set_hatch(hatch)
        band.set_edgecolor("white")
    _mark_phases(axes, timeline)
    peak = timeline.peak_bytes / size
    axes.axhline(peak, color="black", lw=0.8, ls="--")
    axes.annotate(
        f"peak {format_bytes(timeline.peak_bytes)}",
        xy=(timeline.peak_event, peak),
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
    )
    axes.plot([timeline.peak_event], [peak], marker="v", color="black")
    axes.set(title=title, xlabel="allocations and frees since the start", ylabel=f"live tensors on the device, {unit}")
    axes.set_xlim(0, max(timeline.events[-1], 1))
    axes.set_ylim(0, peak * 1.18)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, reverse=True)
    save_picture(figure, path)


def save_picture(figure: Any, path: Path) -> None:
    """Write a pyplot figure into a file, and close it.

    Raises:
        ReportError: the file cannot be written.
    """
    from matplotlib import pyplot

    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ReportError(f"cannot write the picture {path}: {error}; give a writable .png file") from error
    finally:
        pyplot.close(figure)


def svg_text(draw: Callable[[], Any]) -> str:
    """Return the pyplot figure that ``draw`` makes as one ``<svg>`` element that needs nothing from anywhere."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    buffer = io.StringIO()
    with matplotlib.rc_context(REPRODUCIBLE):
        figure = draw()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        pyplot.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _mark_phases(axes: object, timeline: Timeline) -> None:
    """Draw a thin line where a phase begins, and its name where there is room."""
    room = (timeline.events[-1] or 1) / 40
    for phase, first, last in timeline.phases:
        axes.axvline(first, color="black", lw=0.3, alpha=0.4)  # type: ignore[attr-defined]
        if last - first > room:
            axes.text(  # type: ignore[attr-defined]
                (first + last) / 2,
                1.0,
                phase.replace("_", " "),
                transform=axes.get_xaxis_transform(),  # type: ignore[attr-defined]
                ha="center",
                va="top",
                fontsize=7,
                rotation=90,
            )
