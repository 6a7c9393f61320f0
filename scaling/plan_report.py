"""The planner's decision for people: where bytes and seconds go, the best of every strategy, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling.report import headlines, memory_table, print_lines, unit_of
from strategies.decision import Decision, RankedPlan, Suggestion
from strategies.explain import describe_plan, largest_seconds, suggestion_line, why
from strategies.time.step_time import StepTime, time_source
from strategies.units import format_bytes

SHOWN_ALTERNATIVES = 5
SHOWN_FRONT = 8
BYTES_BY_COLUMN = {
    "weights": ("parameters", "gathered_parameters"),
    "grads": ("gradients", "gradient_accumulation"),
    "states": ("master_weights", "optimizer_states"),
    "acts": ("activations", "recomputed_block"),
    "logits": ("logits",),
    "other": ("communication_buckets", "step_temporaries", "framework_context", "allocator_slack", "other"),
}
SECONDS_BY_COLUMN = {
    "matrix": ("matrix_s", "attention_s"),
    "memory": ("memory_bound_s",),
    "again": ("recompute_s",),
    "comm.": ("communication_s",),
    "update": ("optimizer_s",),
    "launch": ("launch_s",),
}


def print_decision(decision: Decision, console: Console) -> None:
    """Print the chosen plan, where its bytes and seconds go, and what it was chosen against."""
    cluster, job = decision.cluster, decision.job
    gpus = f"{cluster.gpus} x {cluster.gpu.name} ({format_bytes(cluster.gpu.memory_bytes)} each)"
    print_lines(
        console,
        [
            f"[bold]{escape(decision.model)}[/bold]: {decision.num_params:,} parameters on {gpus}, {job.precision}, "
            f"sequence {job.seq_len}, global batch {job.global_batch_size}",
            f"[bold green]Plan[/bold green]: {describe_plan(decision.plan, job.loss)}",
            *_time_line(decision),
            *headlines(decision.estimate, usable_bytes=cluster.gpu.memory_bytes),
        ],
    )
    console.print(memory_table(decision.estimate.memory))
    notes = (*decision.estimate.warnings, *decision.warnings)
    print_lines(console, [f"Note: {escape(note)}" for note in notes])
    _print_strategies(decision, console)
    _print_list("Next in the ranking", map(_ranked_line, decision.alternatives[:SHOWN_ALTERNATIVES]), console)
    _print_front(decision, console)
    _print_list("What does not fit", why(decision), console)
    print_suggestions(decision.suggestions, console)


def _time_line(decision: Decision) -> Iterator[str]:
    time = decision.time
    if time is None:
        yield f"Step time is {time_source(decision.cluster)}; the simplest plan that fits is taken"
        return
    rate = decision.job.tokens_per_step / time.total_s
    yield (
        f"Predicted step: {time.total_s:.3g} s, {rate:,.0f} tokens/s, MFU {time.mfu:.1%}; most of it "
        f"{largest_seconds(time)}"
    )
    yield f"  rates: {time_source(decision.cluster)}"


def _print_strategies(decision: Decision, console: Console) -> None:
    """Print the best plan of every strategy: bytes by cause at the highest moment, and seconds of a step by cause."""
    if len(decision.by_strategy) < 2:
        return
    _print_list("The best plan of every strategy", map(_plan_line, decision.by_strategy), console)
    console.print(_bytes_table(decision.by_strategy, safety=decision.safety))
    if all(plan.time is not None for plan in decision.by_strategy):
        console.print(_seconds_table(decision.by_strategy))


def _bytes_table(plans: Sequence[RankedPlan], *, safety: float) -> Table:
    unit, size = unit_of(max(ranked.peak.total_bytes for ranked in plans))
    table = _table(f"{unit} on one GPU by cause; needs, at safety {safety:g}")
    for column in ("strategy", *BYTES_BY_COLUMN, "total", "needs"):
        table.add_column(column, justify="left" if column == "strategy" else "right", no_wrap=True)
    for ranked in plans:
        causes = ranked.peak.causes
        by_column = [sum(getattr(causes, name) for name in names) for names in BYTES_BY_COLUMN.values()]
        cells = [f"{number / size:.1f}" for number in (*by_column, causes.total_bytes, ranked.needed_bytes)]
        table.add_row(str(ranked.plan.strategy), *cells)
    return table


def _seconds_table(plans: Iterable[RankedPlan]) -> Table:
    table = _table("Seconds of one step")
    for column in ("strategy", *SECONDS_BY_COLUMN, "total", "MFU"):
        table.add_column(column, justify="left" if column == "strategy" else "right", no_wrap=True)
    for ranked in plans:
        time = ranked.time
        if time is not None:
            seconds = [sum(getattr(time, name) for name in names) for names in SECONDS_BY_COLUMN.values()]
            cells = [f"{number:.2f}" for number in (*seconds, time.total_s)]
            table.add_row(str(ranked.plan.strategy), *cells, f"{time.mfu:.1%}")
    return table


def _table(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE, title_justify="left", padding=0)


def _print_list(title: str, lines: Iterable[str], console: Console) -> None:
    found = [f"  - {escape(line)}" for line in lines]
    if found:
        print_lines(console, [f"[bold]{title}[/bold]", *found])


def _plan_line(ranked: RankedPlan) -> str:
    return describe_plan(ranked.plan, ranked.loss)


def _ranked_line(ranked: RankedPlan) -> str:
    return f"{_plan_line(ranked)}: {_cost(ranked.device_bytes, ranked.time)}"


def _cost(device_bytes: int, time: StepTime | None) -> str:
    seconds = "" if time is None else f", {time.total_s:.4g} s a step"
    return f"{format_bytes(device_bytes)}{seconds}"


def _print_front(decision: Decision, console: Console) -> None:
    """Print the front of memory against time: what less memory costs."""
    if len(decision.front) < 2:
        return
    step = -(-len(decision.front) // SHOWN_FRONT)
    lines = (_ranked_line(ranked) for ranked in decision.front[::step])
    _print_list("With less memory (each is the best that needs no more)", lines, console)


def print_suggestions(suggestions: Iterable[Suggestion], console: Console) -> None:
    """Print changes to what was asked, each with what is planned then."""
    _print_list("What would make it faster", map(suggestion_line, suggestions), console)
