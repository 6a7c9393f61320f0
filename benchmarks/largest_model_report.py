"""The nouns and the table of `benchmarks.largest_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strategies.units import MIB

STEPS = 6
"""Optimizer steps of a run."""
PLAIN, BEST_DDP, PLANNED = "plain DDP", "DDP at its best", "planned"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Size:
    """One model of the family; sizes are ordered by their parameters."""

    num_params: int
    width: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One real run."""

    size: Size
    plan: str
    predicted_peak_bytes: int
    measured_peak_bytes: int
    """Live tensors on the device, on the rank that holds most."""
    predicted_host_bytes: int | None
    """Of the whole node, processes included; None where it is not known."""
    losses: tuple[float, ...]
    step_time_s: float

    @property
    def has_learnt(self) -> bool:
        return len(self.losses) == STEPS and self.losses[-1] < self.losses[0] < float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The largest size that one contender trains, and the next one up."""

    contender: str
    budget_bytes: int
    largest: Outcome
    next_up: Outcome

    @property
    def is_proven(self) -> bool:
        fits = self.largest.measured_peak_bytes <= self.budget_bytes < self.next_up.measured_peak_bytes
        return fits and self.largest.has_learnt and self.next_up.has_learnt


def ratio_of(contests: Sequence[Contest]) -> float:
    """Return how many times more parameters the planner's largest model has than plain DDP's."""
    largest: Mapping[str, int] = {each.contender: each.largest.size.num_params for each in contests}
    return largest[PLANNED] / largest[PLAIN]


def report(contests: Sequence[Contest]) -> str:
    """Return the runs as Markdown."""
    budget = contests[0].budget_bytes / MIB
    head = "| | parameters | width x blocks | plan | predicted MiB | measured MiB | loss | step s | s per million |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    for each in contests:
        lines += [_row(each.contender, each.largest), _row("next size up", each.next_up)]
    proven = ", ".join(f"{each.contender} {'yes' if each.is_proven else 'NO'}" for each in contests)
    return (
        f"# The largest model in {budget:.0f} MiB a rank\n\nMethod: `benchmarks/largest_model.py`; logs in "
        f"`largest_model/`. Ratio of parameters, planned over plain DDP: **{ratio_of(contests):.1f}**. "
        f"Largest below the budget, next size above it, loss fallen in both: {proven}.\n\n"
        + "\n".join(lines)
        + "\n\n"
        + _host_line(contests)
    )


def _row(name: str, run: Outcome) -> str:
    shape = f"{run.size.width} x {run.size.blocks}"
    sizes = f"{run.predicted_peak_bytes / MIB:.2f} | {run.measured_peak_bytes / MIB:.2f}"
    losses = f"{run.losses[0]:.3f} to {run.losses[-1]:.3f}"
    pace = f"{run.step_time_s:.2f} | {1e6 * run.step_time_s / run.size.num_params:.3f}"
    return f"| {name} | {run.size.num_params:,} | {shape} | {run.plan} | {sizes} | {losses} | {pace} |"


def _host_line(contests: Sequence[Contest]) -> str:
    needs = {each.contender: each.largest.predicted_host_bytes for each in contests}
    planned, plain = ((needs[name] or 0) / MIB for name in (PLANNED, PLAIN))
    return (
        f"The planned run needs {planned:.0f} MiB of host memory, plain DDP {plain:.0f} (predicted, of the whole node, "
        f"processes and libraries included). Device and host bytes are told apart by their owner: docs/measuring.md.\n"
    )
