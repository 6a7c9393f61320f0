"""A picture of one run or several: loss, learning rate, gradient norm and speed over the steps of metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scaling.errors import ReportError
from scaling.plots import save_picture
from scaling.run_folder import METRICS_FILE

PANELS: Final = (
    ("loss", "loss, nats"),
    ("lr", "learning rate"),
    ("grad_norm", "gradient norm before clipping"),
    ("tokens_per_s", "tokens/s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What metrics.jsonl of a run holds, line by line."""

    name: str
    steps: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]

    def points(self, field: str) -> tuple[list[int], list[float]]:
        """Return the steps in which ``field`` is known, and its values."""
        known = [(line["step"], line[field]) for line in self.steps if line.get(field) is not None]
        return [step for step, _ in known], [value for _, value in known]


def read_curves(folder: Path) -> Curves:
    """Return the curves of the run in ``folder``; a last line that is still being written is left out.

    Raises:
        ReportError: there is no run, or none that has done a step.
    """
    path = folder / METRICS_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}; give the --out folder of a run") from error
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]
    steps = [line for line in lines if "loss" in line]
    if not steps:
        raise ReportError(f"{path} has no step yet; wait for the first")
    return Curves(name=str(folder), steps=steps, evaluations=[line for line in lines if "eval_loss" in line])


def plot_curves(runs: Sequence[Curves], *, path: Path) -> None:
    """Write a PNG of four panels, a line a run; points are evaluations.

    Raises:
        ReportError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained", sharex=True)
    panels = dict(zip((field for field, _ in PANELS), grid.flat, strict=True))
    for run in runs:
        for field, axes in panels.items():
            [line] = axes.plot(*run.points(field), lw=1.0, label=run.name)
            if field == "loss" and run.evaluations:
                where = [each["step"] for each in run.evaluations]
                losses = [each["eval_loss"] for each in run.evaluations]
                axes.plot(where, losses, "o", ms=4, color=line.get_color(), label=f"{run.name}, evaluation")
    for field, title in PANELS:
        panels[field].set(title=title)
        panels[field].grid(alpha=0.3)
    for axes in grid[-1]:
        axes.set_xlabel("optimizer steps")
    panels["loss"].legend(frameon=False)
    save_picture(figure, path)
