"""A decision as tables for people. Results go to stdout; everything else to stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from strategies.adapt import as_trained
from strategies.cluster import Cluster
from strategies.decision import Candidate, Decision, Resource
from strategies.emit.commands import launch_commands
from strategies.estimate import Estimate, Level, MemoryProfile, Phase, PhaseBytes
from strategies.explain import at_safety, describe_plan, describe_trained, largest_seconds, needs
from strategies.job import Job
from strategies.learning.step_correction import known_step_time
from strategies.model_spec import ModelSpec
from strategies.planner.safety import DEFAULT_SAFETY, needed_bytes, shortage
from strategies.time.correction import StepCorrection
from strategies.time.step_time import StepTime, time_source
from strategies.units import GIB, MIB, format_bytes, format_seconds

if TYPE_CHECKING:  # brings torch, which planning does without
    from scaling.comparison import Comparison
    from scaling.levels import Question


def print_estimate(candidate: Candidate, question: Question, console: Console) -> None:
    """Print where the bytes of one plan go, whether it fits, and how long a step takes where that is known."""
    cluster, job, estimate = question.cluster, question.job, candidate.estimate
    time = known_step_time(question.spec, cluster=cluster, job=job, plan=candidate.plan)
    lines = [
        asked_line(question.model, question.spec, cluster=cluster, job=job),
        f"[bold green]Plan[/bold green]: {describe_plan(candidate.plan, job.loss)}",
        *time_lines(time, cluster=cluster, job=job),
        *headlines(estimate, cluster=cluster, safety=DEFAULT_SAFETY),
        f"[bold]{verdict(estimate, cluster=cluster, safety=DEFAULT_SAFETY)}[/bold]",
    ]
    print_lines(console, lines)
    console.print(memory_table(estimate.memory))
    print_lines(console, [f"Note: {escape(warning)}" for warning in estimate.warnings])


def asked_line(model: str, spec: ModelSpec, *, cluster: Cluster, job: Job) -> str:
    """Return what is trained on what, as one line."""
    gpus = f"{cluster.gpus} x {cluster.gpu.name} ({format_bytes(cluster.gpu.memory_bytes)} each)"
    return (
        f"[bold]{escape(model)}[/bold]: {_parameters(spec, job)} on {gpus}, {job.precision}, "
        f"sequence {job.seq_len}, global batch {job.global_batch_size}"
    )


def _parameters(spec: ModelSpec, job: Job) -> str:
    """Return how many parameters there are, how many of them are trained, and by what."""
    trained = as_trained(spec, job)
    if job.trains_all:
        return f"{trained.num_params:,} parameters"
    part = escape(describe_trained(job))
    return f"{trained.num_params:,} parameters, {trained.num_trained_params:,} of them trained ({part}),"


def time_lines(time: StepTime | None, *, cluster: Cluster, job: Job) -> Iterator[str]:
    """Yield how long a step takes and what that rests on."""
    if time is None:
        yield f"Step time is {time_source(cluster)}"
        return
    rate = job.tokens_per_step / time.total_s
    yield (
        f"Predicted step: {format_seconds(time.total_s, digits=3)}, {rate:,.0f} tokens/s, MFU {time.mfu:.1%}; "
        f"most of it {largest_seconds(time)}"
    )
    yield f"  rates: {time_source(cluster)}"
    if time.correction is not None:
        yield f"  {correction_line(time, time.correction)}"


def correction_line(time: StepTime, correction: StepCorrection) -> str:
    """Return what the user's own runs did to a predicted step time."""
    before = format_seconds(time.total_s / correction.factor, digits=3)
    line = f"times {correction.factor:.3f} from {correction.source}: {before} before"
    if correction.measured is None:
        return line
    low, high = (
        format_seconds(time.total_s * end, digits=3) for end in (correction.measured.low, correction.measured.high)
    )
    return f"{line}; nine in ten take {low} to {high}"


def verdict(estimate: Estimate, *, cluster: Cluster, safety: float) -> str:
    """Return whether a plan fits by the point estimate, and whether ``scaling plan`` would take it at ``safety``."""
    by_point, sure = shortage(estimate, cluster=cluster), shortage(estimate, cluster=cluster, safety=safety)
    left = [cluster.gpu.memory_bytes - needed_bytes(estimate, cluster=cluster, safety=each) for each in (0.0, safety)]
    if by_point is not None:
        return f"does not fit: {_too_little(by_point)}"
    if sure is not None:
        return (
            f"fits by the point estimate, {format_bytes(left[0])} left; "
            f"does not fit{at_safety(safety)}: {_too_little(sure)}"
        )
    return f"fits: {format_bytes(left[0])} left by the point estimate, {format_bytes(left[1])}{at_safety(safety)}"


def _too_little(lacking: tuple[Resource, int]) -> str:
    return f"{format_bytes(lacking[1])} of {lacking[0]} too little"


def print_lines(console: Console, lines: list[str]) -> None:
    """Print each line unbroken: a terminal wraps it, a file or a pipe keeps it whole."""
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def headlines(estimate: Estimate, *, cluster: Cluster, safety: float) -> Iterator[str]:
    """Yield what a GPU and its node need."""
    needed = needs(estimate.device_bytes, needed_bytes(estimate, cluster=cluster, safety=safety), safety=safety)
    found = "Measured" if estimate.level is Level.MEASURED else "Predicted"
    phase = estimate.memory.peak.phase.replace("_", " ")
    yield (
        f"{found} peak per GPU: {format_bytes(estimate.peak_allocated_bytes)} allocated in {phase} "
        f"({estimate.level} level); {needed}, of {format_bytes(cluster.gpu.memory_bytes)}"
    )
    if estimate.context_bytes:  # a GPU
        yield (
            f"  with {format_bytes(estimate.context_bytes)} of device context; the allocator reserves "
            f"{format_bytes(estimate.peak_reserved_bytes)} where there is room"
        )
    if estimate.interval is not None:
        low, high = format_bytes(estimate.interval.low_bytes), format_bytes(estimate.interval.high_bytes)
        yield f"  90 % interval of the measured peak, from {estimate.interval.source}: {low} to {high}"
    if estimate.host is not None and estimate.context_bytes:
        yield f"Host memory per node: {format_bytes(estimate.host.peak.total_bytes)} at its highest moment"


PHASE_LABELS = {
    Phase.INITIALISE: "init",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER_STEP: "step",
    Phase.EVALUATION: "eval",
    Phase.SAVE: "save",
}


def memory_table(memory: MemoryProfile) -> Table:
    """Return bytes by cause (rows) and phase (columns), all in one unit; the peak phase is marked with a star."""
    peak = memory.peak
    unit, size = unit_of(peak.total_bytes)
    table = Table(title=f"{unit} on one GPU at the highest moment of each phase", box=box.SIMPLE, title_justify="left")
    table.add_column("cause", no_wrap=True)
    for phase in memory.phases:
        table.add_column(PHASE_LABELS[phase.phase] + ("*" if phase is peak else ""), justify="right", no_wrap=True)
    by_phase = [dict(phase.causes.items()) for phase in memory.phases]
    for cause in _causes_in_order(by_phase):
        cells = [f"{causes[cause] / size:.2f}" if cause in causes else "-" for causes in by_phase]
        table.add_row(cause.replace("_", " "), *cells)
    table.add_section()
    table.add_row("total", *(f"{phase.total_bytes / size:.2f}" for phase in memory.phases), style="bold")
    return table


def unit_of(num_bytes: int) -> tuple[str, int]:
    """Return the unit in which a table with so many bytes is printed, and its size."""
    return ("GiB", GIB) if num_bytes >= GIB else ("MiB", MIB)


def _causes_in_order(by_phase: Iterable[dict[str, int]]) -> list[str]:
    return list(dict.fromkeys(cause for causes in by_phase for cause in causes))


def print_measured(comparison: Comparison, console: Console) -> None:
    """Print measured bytes by phase and cause, and the predicted peak of every phase beside the measured one."""
    result = comparison.result
    decision, measured = result.decision, result.measured
    ranks = f"{decision.cluster.gpus} x {decision.cluster.gpu.name} ({result.method})"
    print_lines(
        console,
        [
            f"[bold]{escape(decision.model)}[/bold] under {describe_plan(decision.plan)} on {ranks}, "
            f"{result.num_steps} steps; rank {result.rank}",
        ],
    )
    console.print(memory_table(measured))
    console.print(_comparison_table(measured, {"instant": decision.estimate.memory, "traced": comparison.traced}))
    print_lines(
        console,
        [
            f"Peak: predicted {format_bytes(decision.estimate.peak_allocated_bytes)} ({decision.estimate.level}), "
            f"measured {format_bytes(measured.peak_bytes)}: measured / predicted = {result.measured_over_predicted:.4f}"
        ],
    )
    if result.peak_reserved_bytes is not None:
        replayed, predicted = result.peak_reserved_bytes, decision.estimate.peak_reserved_bytes
        line = f"Reserved by the allocator: {format_bytes(replayed)} replayed, {format_bytes(predicted)} predicted"
        print_lines(console, [line])


def _comparison_table(measured: MemoryProfile, predicted: Mapping[str, MemoryProfile | None]) -> Table:
    """Return the phases as rows; for each level that there is its bytes, and measured over them."""
    table = Table(title="Highest moment of each phase", box=box.SIMPLE, title_justify="left")
    table.add_column("phase", no_wrap=True)
    levels = {level: profile for level, profile in predicted.items() if profile is not None}
    for column in ("measured", *(name for level in levels for name in (level, "ratio"))):
        table.add_column(column, justify="right", no_wrap=True)
    for phase in measured.phases:
        cells = [cell for profile in levels.values() for cell in _beside(phase, profile)]
        table.add_row(phase.phase.replace("_", " "), format_bytes(phase.total_bytes), *cells)
    return table


def _beside(measured: PhaseBytes, predicted: MemoryProfile) -> tuple[str, str]:
    total = next((phase.total_bytes for phase in predicted.phases if phase.phase is measured.phase), 0)
    return (format_bytes(total), f"{measured.total_bytes / total:.4f}") if total else ("-", "-")


def print_launch(decision: Decision, *, folder: Path, written: list[Path], console: Console) -> None:
    """Print the files written and one launch line per launcher, unwrapped so that they can be copied."""
    names = ", ".join(str(path) for path in written)
    console.print(f"Wrote {names}", highlight=False, markup=False, soft_wrap=True)
    for command in launch_commands(decision, folder=folder):
        console.print(f"[bold]{command.launcher}[/bold]", soft_wrap=True)
        console.print(f"  {command.line}", highlight=False, markup=False, soft_wrap=True)
    console.print("Put your own text, tokenizer and number of steps in place of the example's.", soft_wrap=True)
