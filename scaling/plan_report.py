"""The planner's decision for people: where bytes and seconds go, the best of every strategy, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling.report import asked_line, headlines, memory_table, print_lines, time_lines, unit_of
from strategies.decision import Decision, RankedPlan, Suggestion
from strategies.explain import at_safety, describe_plan, needs, suggestion_line, why
from strategies.model_spec import ModelSpec
from strategies.units import format_seconds

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
    "matrix": ("matrix_s",),
    "attn.": ("attention_s",),
    "memory": ("memory_bound_s",),
    "again": ("recompute_s",),
    "comm.": ("communication_s",),
    "update": ("optimizer_s",),
    "launch": ("launch_s",),
}


def print_decision(decision: Decision, spec: ModelSpec, console: Console) -> None:
    """Print the chosen plan for the model ``spec``, where its bytes and seconds go, and what it was chosen against."""
    cluster, job = decision.cluster, decision.job
    print_lines(
        console,
        [
            asked_line(decision.model, spec, cluster=cluster, job=job),
            f"[bold green]Plan[/bold green]: {describe_plan(decision.plan, job.loss)}",
            *time_lines(decision.time, cluster=cluster, job=job),
            *([] if decision.time else ["  the simplest plan that fits is taken"]),
            *headlines(decision.estimate, cluster=cluster, safety=decision.safety),
        ],
    )
    console.print(memory_table(decision.estimate.memory))
    notes = (*decision.estimate.warnings, *decision.warnings)
    print_lines(console, [f"Note: {escape(note)}" for note in notes])
    _print_strategies(decision, console)
    shown = (_ranked_line(each, decision.safety) for each in decision.alternatives[:SHOWN_ALTERNATIVES])
    _print_list("Next in the ranking", shown, console)
    _print_front(decision, console)
    _print_list("What does not fit", why(decision), console)
    print_suggestions(decision.suggestions, console)


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
    upper = [f"at {safety:g}"] if safety else []
    last = f"; last column: needs{at_safety(safety)}" if safety else ""
    table = _table(f"{unit} on one GPU by cause{last}")
    for column in ("strategy", *BYTES_BY_COLUMN, "total", "needs", *upper):
        table.add_column(column, justify="left" if column == "strategy" else "right", no_wrap=True)
    for ranked in plans:
        causes = ranked.peak.causes
        by_column = [sum(getattr(causes, name) for name in names) for names in BYTES_BY_COLUMN.values()]
        sure = (ranked.needed_bytes,) if safety else ()
        numbers = (*by_column, causes.total_bytes, ranked.device_bytes, *sure)
        cells = [f"{number / size:.1f}" for number in numbers]
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


def _ranked_line(ranked: RankedPlan, safety: float) -> str:
    seconds = "" if ranked.time is None else f"; {format_seconds(ranked.time.total_s)} a step"
    return f"{_plan_line(ranked)}: {needs(ranked.device_bytes, ranked.needed_bytes, safety=safety)}{seconds}"


def _print_front(decision: Decision, console: Console) -> None:
    """Print the front of memory against time: what less memory costs."""
    if len(decision.front) < 2:
        return
    lines = (_ranked_line(ranked, decision.safety) for ranked in shown_front(decision.front))
    _print_list("With less memory (each is the best that needs no more)", lines, console)


def shown_front(front: Sequence[RankedPlan]) -> list[RankedPlan]:
    """Return the plans of a front that are printed: its ends, and those between them that offer most.

    One after the other, the plan is taken that adds most to the area of memory and time that shown plans are better
    than (greedy hypervolume selection): evenly counted places could pass over the one that saves most for little time.
    """
    kept = {0, len(front) - 1}
    while len(kept) < min(SHOWN_FRONT, len(front)):
        hidden = [place for place in range(len(front)) if place not in kept]
        kept.add(max(hidden, key=lambda place: _offer(front, place, kept)))
    return [front[place] for place in sorted(kept)]


def _offer(front: Sequence[RankedPlan], place: int, kept: set[int]) -> float:
    """Return by how much less memory than the shown plan before it, times how much sooner than the one behind it."""
    before, behind = max(each for each in kept if each < place), min(each for each in kept if each > place)
    here, last = front[place].time, front[behind].time
    sooner = last.total_s - here.total_s if here and last else behind - place
    return (front[before].device_bytes - front[place].device_bytes) * sooner


def print_suggestions(suggestions: Iterable[Suggestion], console: Console) -> None:
    """Print changes to what was asked, each with what is planned then."""
    _print_list("What would make it faster", map(suggestion_line, suggestions), console)
