"""The tables and the picture of `benchmarks.peers`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOLS = ("ours", "deepspeed", "accelerate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a tool predicts for one GPU."""

    gib: float
    is_own: bool
    """Whether it was asked about what it is for; else it stands in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One configuration: what was measured, and what each tool says; None where it has no answer."""

    id: str
    source: str
    model: str
    num_params: int
    strategy: str
    activation_checkpointing: str
    gpus: int
    micro_batch_size: int
    seq_len: int
    measured_gib: float
    states_gib: float | None
    """Model states at their highest measured moment; None where only the whole was published."""
    answers: Mapping[str, Answer | None]
    note: str

    def error(self, tool: str) -> float | None:
        """Return predicted / measured - 1."""
        answer = self.answers[tool]
        return None if answer is None else answer.gib / self.measured_gib - 1


def summary(found: Sequence[Comparison]) -> dict[str, Any]:
    """Return the median absolute relative error of every tool, and how many configurations it answers."""
    return {tool: _score(found, tool) for tool in TOOLS}


def _score(found: Sequence[Comparison], tool: str) -> dict[str, Any]:
    answered = [(each, answer) for each in found if (answer := each.answers[tool]) is not None]
    own = [(each, answer) for each, answer in answered if answer.is_own]
    states = [abs(answer.gib / each.states_gib - 1) for each, answer in own if each.states_gib is not None]
    return {
        "configurations": len(found),
        "answered": len(answered),
        "own": len(own),
        "median_error": _median_error(answered),
        "median_error_of_ours_there": _median_error([(each, each.answers["ours"]) for each, _ in answered]),
        "median_error_of_own": _median_error(own),
        "over_1_percent_too_low": sum(answer.gib < 0.99 * each.measured_gib for each, answer in answered),
        "median_error_against_states_of_own": statistics.median(states) if states else None,
    }


def _median_error(pairs: Sequence[tuple[Comparison, Answer | None]]) -> float | None:
    errors = [abs(answer.gib / each.measured_gib - 1) for each, answer in pairs if answer is not None]
    return statistics.median(errors) if errors else None


NOTES = """\
GiB on one GPU. † the tool stands in: the row is not what it is made for. Both peers say that they count model states
only (DeepSpeed: "params, optim states and gradients"; accelerate: "for a batch size of 1", one process): activations,
logits, buffers and temporaries are not in their numbers, and they do not claim it. accelerate's is for one process with
everything in it; sharding is not known to it.
All twelve rows were seen while our formulas were made; none was fitted on.
"""
HERE = """\
## Real runs on this machine

Small models under this trainer on real CPU ranks (`benchmarks/memory_accuracy.py`), MiB. *States* is what parameters,
master weights, gradients and optimizer states held together at their highest moment, by the meter: what the peers'
formulas are about. Small models make buffers and logits weigh more than they do at billions of parameters.
"""


def report(published: Sequence[Comparison], run_here: Sequence[Comparison]) -> str:
    """Return both tables as Markdown."""
    head = ["row", "source", "model", "strategy", "recomputed", "GPUs", "batch x length", "measured", *TOOLS, "note"]
    lines = [_line(head), _line(["---"] * len(head)), *(_line(_published_cells(each)) for each in published)]
    head = ["model", "strategy", "ranks", "measured", "states", *TOOLS]
    here = [_line(head), _line(["---"] * len(head)), *(_line(_run_here_cells(each)) for each in run_here)]
    parts = [
        "# Who predicted what\n\nMethod: `benchmarks/peers.py`.",
        scores_table(published),
        "\n".join(lines),
        NOTES + "\n![predicted over measured](peers.png)\n\n" + HERE,
        scores_table(run_here),
        "\n".join(here),
    ]
    return "\n\n".join(parts) + "\n"


def scores_table(found: Sequence[Comparison]) -> str:
    """Return the scores as Markdown."""
    errors_of = ["median error", "ours there", "median error, own", "over 1 % too low", "own, against states alone"]
    head = ["", "answers", "of them own", *errors_of]
    lines = [_line(head), _line(["---"] * len(head))]
    for tool, score in summary(found).items():
        answers = f"{score['answered']} of {score['configurations']}"
        names = ("median_error", "median_error_of_ours_there", "median_error_of_own")
        errors = [_percent(score[name]) for name in names]
        against_states = _percent(score["median_error_against_states_of_own"] if tool != "ours" else None)
        lines.append(
            _line([tool, answers, str(score["own"]), *errors, str(score["over_1_percent_too_low"]), against_states])
        )
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}" if share >= 0.001 else f"{share:.4%}"


def _published_cells(each: Comparison) -> list[str]:
    answers = [_cell(each, tool) for tool in TOOLS]
    shape = f"{each.micro_batch_size} x {each.seq_len}"
    names = [each.id, each.source, each.model, each.strategy, each.activation_checkpointing]
    return [*names, str(each.gpus), shape, f"{each.measured_gib:.1f}", *answers, each.note]


def _run_here_cells(each: Comparison) -> list[str]:
    answers = [_cell(each, tool, scale=1024) for tool in TOOLS]
    sizes = [f"{1024 * size:.1f}" for size in (each.measured_gib, each.states_gib or 0.0)]
    return [each.model, each.strategy, str(each.gpus), *sizes, *answers]


def _cell(each: Comparison, tool: str, *, scale: int = 1) -> str:
    answer, error = each.answers[tool], each.error(tool)
    if answer is None or error is None:
        return "-"
    return f"{scale * answer.gib:.1f} ({error:+.0%}){'' if answer.is_own else '†'}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plot(found: Sequence[Comparison], path: Path) -> None:
    """Draw predicted over measured for every configuration and tool."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(10, 5.5), layout="constrained")
    looks = {"ours": ("o", "#117733"), "deepspeed": ("s", "#CC6677"), "accelerate": ("^", "#332288")}
    for tool, (marker, colour) in looks.items():
        for is_own in (True, False):
            points = [
                (answer.gib / each.measured_gib, place)
                for place, each in enumerate(found)
                if (answer := each.answers[tool]) is not None and answer.is_own == is_own
            ]
            across, down = zip(*points, strict=True) if points else ((), ())
            label = tool if is_own else f"{tool}, standing in"
            fill = colour if is_own else "none"
            if points:
                axes.scatter(across, down, marker=marker, facecolors=fill, edgecolors=colour, s=60, label=label)
    labels = [f"{each.model}, {each.strategy}, {each.gpus} GPU{'s'[: each.gpus > 1]} ({each.id})" for each in found]
    axes.set_yticks(range(len(found)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", lw=0.8)
    axes.set(xscale="log", xlabel="predicted / measured peak (1: right; left of it: predicted too low)")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.grid(axis="y", lw=0.3)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_title("Peak memory of 12 published runs: who predicted what")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
