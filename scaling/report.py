"""A decision as tables for people. Results go to stdout; everything else to stderr."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from strategies.decision import Decision
from strategies.emit.commands import launch_commands
from strategies.estimate import Estimate, MemoryProfile
from strategies.explain import describe_plan, why
from strategies.units import format_bytes


def print_decision(decision: Decision, console: Console) -> None:
    """Print the chosen plan, where its bytes go, and why each simpler plan was rejected."""
    cluster, job, plan = decision.cluster, decision.job, decision.plan
    console.print(
        f"[bold]{decision.model}[/bold]: {decision.num_params:,} parameters on {cluster.gpus} x {cluster.gpu.name} "
        f"({format_bytes(cluster.gpu.memory_bytes)} each), {job.precision}, sequence {job.seq_len}, "
        f"global batch {job.global_batch_size}"
    )
    console.print(f"[bold green]Plan[/bold green]: {describe_plan(plan)}")
    console.print(_headline(decision.estimate, usable_bytes=cluster.gpu.memory_bytes))
    console.print(memory_table(decision.estimate.memory))
    console.print("[bold]Why not a simpler plan[/bold]")
    for reason in why(decision) or ["this is the simplest one"]:
        console.print(f"  - {reason}", highlight=False)


def _headline(estimate: Estimate, *, usable_bytes: int) -> str:
    return (
        f"Predicted peak per GPU: {format_bytes(estimate.peak_allocated_bytes)} allocated in "
        f"{estimate.memory.peak.phase.replace('_', ' ')}, {format_bytes(estimate.peak_reserved_bytes)} reserved "
        f"with context, of {format_bytes(usable_bytes)} ({estimate.level} level)"
    )


def memory_table(memory: MemoryProfile) -> Table:
    """Return bytes by cause (rows) and phase (columns); the peak phase is marked with a star."""
    peak = memory.peak
    table = Table(title="Bytes on one GPU at the highest moment of each phase")
    table.add_column("cause")
    for phase in memory.phases:
        table.add_column(phase.phase.replace("_", " ") + (" *" if phase is peak else ""), justify="right")
    by_phase = [dict(phase.causes.items()) for phase in memory.phases]
    for cause in _causes_in_order(by_phase):
        cells = [format_bytes(causes[cause]) if cause in causes else "-" for causes in by_phase]
        table.add_row(cause.replace("_", " "), *cells)
    table.add_section()
    table.add_row("total", *(format_bytes(phase.total_bytes) for phase in memory.phases), style="bold")
    return table


def _causes_in_order(by_phase: Iterable[dict[str, int]]) -> list[str]:
    return list(dict.fromkeys(cause for causes in by_phase for cause in causes))


def print_launch(decision: Decision, *, folder: Path, written: list[Path], console: Console) -> None:
    """Print the files written and one launch line per launcher, unwrapped so that they can be copied."""
    console.print(f"Wrote {', '.join(str(path) for path in written)}", highlight=False, soft_wrap=True)
    for command in launch_commands(decision, folder=folder):
        console.print(f"[bold]{command.launcher}[/bold]", soft_wrap=True)
        console.print(f"  {command.line}", highlight=False, markup=False, soft_wrap=True)
