"""Both runs of a comparison as lines to print."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scaling.frameworks.result import FrameworkComparison, FrameworkRun
from strategies.explain import describe_plan
from strategies.units import format_bytes, format_seconds

Row = tuple[str, Callable[[FrameworkRun], str]]


def lines(comparison: FrameworkComparison) -> list[str]:
    """Return the comparison: what ran, a table with one column a framework, and what its numbers mean."""
    cluster, runs = comparison.cluster, comparison.runs
    table = [["", *(run.framework.value for run in runs)], *([name, *map(told, runs)] for name, told in _rows(runs))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        f"{comparison.model}: {comparison.num_params:,} parameters on {cluster.gpus} x {cluster.gpu.name}, "
        f"{comparison.steps} steps from the same weights over the same samples",
        *(f"  {run.framework}: {describe_plan(run.plan)}, {run.job.precision}" for run in runs),
        "",
        *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table),
        "",
        f"Largest difference in loss of a step: {comparison.largest_loss_difference:.1e} of PyTorch's",
        *_meanings(comparison),
    ]


def _rows(runs: tuple[FrameworkRun, ...]) -> Iterator[Row]:
    yield "first loss", lambda run: f"{run.losses[0]:.6f}"
    yield "last loss", lambda run: f"{run.losses[-1]:.6f}"
    yield "tokens/s", lambda run: f"{run.tokens_per_s:,.0f}"
    yield "start-up", lambda run: format_seconds(run.start_up_s, digits=3)
    yield "compile", lambda run: format_seconds(run.compile_s, digits=3)
    yield "whole run", lambda run: format_seconds(run.whole_s, digits=3)
    yield "predicted peak", lambda run: format_bytes(run.predicted_peak_bytes)
    if any(run.peak_device_bytes is not None for run in runs):
        yield "measured peak", lambda run: format_bytes(run.peak_device_bytes or 0)
    yield "peak resident", lambda run: format_bytes(run.peak_resident_bytes)
    yield "processes", lambda run: str(run.num_processes)


def _meanings(comparison: FrameworkComparison) -> Iterator[str]:
    yield f"tokens/s: median over the steps after the first {comparison.warm_up_steps}, all devices together"
    yield "start-up: from the first process to the first step: imports, data, model, weights"
    yield "compile: what the first step takes beyond a later one"
    yield "predicted peak: live tensors on the fullest device, by the closed forms (instant level)"
    if any(run.peak_device_bytes is not None for run in comparison.runs):
        yield "measured peak: the same, counted; on CPUs by PyTorch's storage meter and by TensorFlow's allocator"
    yield (
        "peak resident: the highest resident set of every process that trains, summed, with libraries and data in it; "
        "TensorFlow's one process has all replicas"
    )
