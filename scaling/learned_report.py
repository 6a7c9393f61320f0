"""What the user's runs taught, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from scaling.report import print_lines
from strategies.conformal import RatioRange
from strategies.learning.lessons import PEAK, STEP, Lesson, Lessons

LEAST_WIDTH = 140
"""Of the table: a narrower terminal wraps its lines, where rich would leave out the kind and cut off numbers."""


def print_lessons(lessons: Lessons, *, is_used: bool, console: Console) -> None:
    """Print bias and 90 % interval by kind of run, before and after, and what did not count."""
    console.width = max(console.width, LEAST_WIDTH)
    for about in (PEAK, STEP):
        if found := [each for each in lessons.lessons if each.about == about]:
            console.print(_table(about, found))
    use = "plan and estimate use it" if is_used else "it is used where it lies in your data folder: leave out --out"
    print_lines(console, [*_notes(lessons), f"Wrote {lessons.file} from {lessons.num_runs} runs; {use}"])


def _table(about: str, lessons: list[Lesson]) -> Table:
    title = f"Measured / predicted {about}: median, and the range of nine in ten"
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("runs of", overflow="fold")
    for column in ("models", "setups", "runs", "newest", "median", "after", "90 % before", "90 % after"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in lessons:
        medians = (f"{each.bias_before:.3f}", f"{each.bias_after:.3f}")
        counts = (str(each.num_models), str(each.num_setups), str(each.num_runs), each.newest[:10])
        table.add_row(each.kind, *counts, *medians, _range(each.before), _range(each.after))
    return table


def _range(found: RatioRange | None) -> str:
    return f"{found.low:.3f} to {found.high:.3f}" if found else "-"


def _notes(lessons: Lessons) -> Iterator[str]:
    if any(each.about == PEAK for each in lessons.lessons):
        yield "A predicted peak is not moved: its interval, and --safety with it, carries what is in the median."
    for source in dict.fromkeys(f"{each.about} of {each.kind}: from {each.source}" for each in lessons.lessons):
        yield f"  {source}"
    left_out = lessons.left_out
    counts = {
        "of other versions of this package": left_out.of_other_versions,
        "without a peak to compare": left_out.without_peak,
        "without a step time to compare": left_out.without_step_time,
    }
    if told := ", ".join(f"{count} {why}" for why, count in counts.items() if count):
        yield f"Left out: {told}"
