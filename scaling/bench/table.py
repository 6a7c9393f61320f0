"""A bench as a table for people and as rows for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scaling.bench.labels import AXES, shared, varied
from scaling.bench.result import Bench, CellResult, Choice, Outcome
from scaling.disk import writing
from scaling.report import unit_of
from strategies.units import format_seconds

Column = tuple[str, Callable[[CellResult], str]]
NOTHING = "-"


def lines(bench: Bench) -> list[str]:
    """Return what ran, one row a cell, and what did not run with why."""
    if not bench.cells:
        return ["no cells"]
    return [*heading(bench), "", *_aligned(table(bench)), "", *meanings(bench), *problems(bench)]


def heading(bench: Bench) -> list[str]:
    """Return the model, the device and what is the same in all cells."""
    first = bench.cells[0]
    cell, environment = first.cell, first.environment
    models = dict.fromkeys(
        f"{each.cell.model}: {each.cell.num_params:,} parameters, {each.cell.precision}" for each in bench.cells
    )
    threads = f"{environment.num_cores} cores, {environment.omp_num_threads} threads a rank"
    return [
        f"{'; '.join(models)}, {cell.gpus} ranks on {environment.device} ({threads})",
        f"all cells: {shared(bench.cells)}" if shared(bench.cells) else "all cells differ in all settings",
        f"each run: {cell.timed_steps} timed steps after {cell.warm_up_steps} of warm-up, in fresh processes",
    ]


def table(bench: Bench) -> list[list[str]]:
    """Return the head and one row of text a cell."""
    columns = [*_settings(bench.cells), *_numbers(bench.cells)]
    return [[name for name, _ in columns], *([told(each) for _, told in columns] for each in bench.cells)]


def _settings(cells: Sequence[CellResult]) -> Iterator[Column]:
    for name, value in varied(cells):
        yield name, _of_choice(value)


def _of_choice(value: Callable[[Choice], str]) -> Callable[[CellResult], str]:
    return lambda each: value(each.cell.choice)


def _numbers(cells: Sequence[CellResult]) -> Iterator[Column]:
    unit, size = unit_of(max((each.peak_bytes or each.predicted_peak_bytes or 0 for each in cells), default=0))
    yield "runs", _runs
    yield f"predicted {unit}", lambda each: _number(each.predicted_peak_bytes, size)
    yield f"measured {unit}", lambda each: _number(each.peak_bytes, size)
    yield "measured / predicted", lambda each: _ratio(each.peak_bytes, each.predicted_peak_bytes)
    if any(each.predicted_step_s for each in cells):
        yield "predicted step", lambda each: _seconds(each.predicted_step_s)
        yield "step / predicted", lambda each: _ratio(each.median_step_s, each.predicted_step_s)
    yield "step", lambda each: _seconds(each.median_step_s)
    yield "min", lambda each: _seconds(min(each.step_times_s, default=None))
    yield "max", lambda each: _seconds(max(each.step_times_s, default=None))
    yield "CPU a step", lambda each: _seconds(each.cpu_s_per_step)
    yield "tokens/s", lambda each: f"{each.tokens_per_s:,.0f}" if each.tokens_per_s else NOTHING


def _runs(result: CellResult) -> str:
    if result.outcome is not Outcome.DONE:
        return result.outcome.value if result.outcome else "not run yet"
    done, all_runs = len(result.done), len(result.runs)
    return str(done) if done == all_runs else f"{done} of {all_runs}"


def _number(num_bytes: int | None, size: int) -> str:
    return f"{num_bytes / size:.2f}" if num_bytes else NOTHING


def _ratio(measured: float | None, predicted: float | None) -> str:
    return f"{measured / predicted:.3f}" if measured and predicted else NOTHING


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_seconds(seconds, digits=3)


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    """Yield the rows with their columns under each other; text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    num_settings = rows[0].index("runs") + 1
    for row in rows:
        cells = [
            cell.ljust(width) if place < num_settings else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def meanings(bench: Bench) -> Iterator[str]:
    """Yield what the columns are."""
    is_cpu = any(each.cell.is_cpu for each in bench.cells)
    counted = "by the storage meter in the first three steps" if is_cpu else "by CUDA's allocator"
    yield f"predicted, measured: live tensors at the highest moment on the rank that holds most; counted {counted}"
    yield "step: median over runs of each one's median step; min, max: of all timed steps"
    yield "CPU a step: processor time of all ranks, which other programs here change less than the step's time"
    if is_cpu and not any(each.predicted_step_s for each in bench.cells):
        yield "step times are predicted on a CPU only after `scaling calibrate`"


def problems(bench: Bench) -> list[str]:
    """Return one line for every cell that has no result, or of which some run did not end well."""
    return [
        f"{each.cell.name}: {(each.runs[-1].outcome if each.runs else Outcome.FAILED).value}: {each.reason}"
        for each in bench.cells
        if each.reason
    ]


def csv_text(bench: Bench) -> str:
    """Return one row a cell, with every setting; bytes and seconds as plain numbers, empty where there is none."""
    fields: list[tuple[str, Callable[[CellResult], object]]] = [
        ("model", lambda each: each.cell.model),
        *((name.replace(" ", "_"), _of_choice(value)) for name, value in AXES),
        ("gpus", lambda each: each.cell.gpus),
        ("outcome", lambda each: each.outcome),
        ("reason", lambda each: each.reason),
        ("num_runs", lambda each: len(each.done)),
        ("predicted_peak_bytes", lambda each: each.predicted_peak_bytes),
        ("measured_peak_bytes", lambda each: each.peak_bytes),
        ("peak_reserved_bytes", lambda each: each.done[-1].peak_reserved_bytes if each.done else None),
        ("peak_resident_bytes", lambda each: each.done[-1].peak_resident_bytes if each.done else None),
        ("predicted_step_s", lambda each: each.predicted_step_s),
        ("median_step_s", lambda each: each.median_step_s),
        ("min_step_s", lambda each: min(each.step_times_s, default=None)),
        ("max_step_s", lambda each: max(each.step_times_s, default=None)),
        ("cpu_s_per_step", lambda each: each.cpu_s_per_step),
        ("tokens_per_s", lambda each: each.tokens_per_s),
    ]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([name for name, _ in fields])
    writer.writerows([told(each) for _, told in fields] for each in bench.cells)
    return file.getvalue()


def write_csv(bench: Bench, path: Path) -> None:
    """Write the rows.

    Raises:
        TrainingError: the file cannot be written.
    """
    with writing(path):
        path.write_text(csv_text(bench), encoding="utf-8")
