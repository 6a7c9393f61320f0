"""The files of a bench: one a cell, and one with all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from scaling.bench.result import VERSION, Bench, CellResult, Outcome, Prediction, Run
from scaling.disk import writing
from scaling.errors import ReportError
from strategies.serialize import T, from_json, numbers, short, to_json

BENCH_FILE = "bench.json"
CELLS_FOLDER = "cells"
RUNS_FOLDER = "runs"
SHORTEST_STEP_S, LARGEST = 1e-9, 1e30
"""Seconds, and seconds or bytes: no run is beyond them, and no prediction of a batch that can be asked for."""


def cell_path(folder: Path, name: str) -> Path:
    """Return the file of the cell called ``name``."""
    return folder / CELLS_FOLDER / f"{name}.json"


def read_cell(path: Path) -> CellResult | None:
    """Return what is stored of a cell, None where nothing is.

    Raises:
        ReportError: the file is broken, of another cell, or of another version.
    """
    if not path.exists():
        return None
    advice = "remove it: the cell is run again"
    result = _read(CellResult, path, advice=advice)
    _require_possible([result], path, advice=advice)
    if result.cell.name != path.stem:
        raise ReportError(f"{path} holds the cell {result.cell.name}, not the one that it is named after; {advice}")
    return result


def write_cell(result: CellResult, *, folder: Path) -> None:
    """Write the file of a cell, whole or not at all.

    Raises:
        TrainingError: it cannot be written.
    """
    _write(cell_path(folder, result.cell.name), to_json(result))


def write_bench(cells: Sequence[CellResult], *, folder: Path) -> Path:
    """Write all cells into one file of ``folder``; return its path.

    Raises:
        TrainingError: it cannot be written.
    """
    path = folder / BENCH_FILE
    _write(path, to_json(Bench(version=VERSION, cells=tuple(cells))))
    return path


def read_bench(path: Path) -> Bench:
    """Return the result in the file ``path``, or in the folder: what its cells hold now, also while a bench goes on.

    Raises:
        ReportError: there is none, or a file is broken, or of another version; names the file.
    """
    file, advice = path, "give a bench.json, or the --out folder of a bench"
    if path.is_dir():
        file, advice = path / BENCH_FILE, "remove it: the same bench writes it again"
        if not file.is_file():
            raise ReportError(f"{path} holds no {BENCH_FILE}; give the --out folder of a bench")
    bench = _read(Bench, file, advice=advice)
    _require_possible(bench.cells, file, advice=advice)
    return bench


def _read(kind: type[T], path: Path, *, advice: str) -> T:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ReportError(f"cannot read {path}: {why}; {advice}") from error
    _require_version(text, path)
    return from_json(kind, text, source=str(path), advice=advice, name="result of a bench")


def _require_version(text: str, path: Path) -> None:
    """Refuse a result of another version by its name, before its fields are looked at."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return  # what is wrong is told where the fields are read
    version = found.get("version") if isinstance(found, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise ReportError(
            f"{path} has version={version}, and this memory-scaling reads version={VERSION}; run the bench again, or "
            f"read it with the memory-scaling that has written it"
        )


def _require_possible(results: Sequence[CellResult], path: Path, *, advice: str) -> None:
    """Refuse what no run has measured and no median, ratio or picture can be made of."""
    for result in results:
        if wrong := next(_impossible(result), ""):
            raise ReportError(f"{path} has {wrong} in the cell {result.cell.name}, which no bench writes; {advice}")


def _impossible(result: CellResult) -> Iterator[str]:
    profiles = [each.measured for each in result.runs if each.measured]
    if result.cell.prediction:
        profiles.append(result.cell.prediction.memory)
        yield from _out_of_range(result.cell.prediction, "cell.prediction")
    if not all(each.phases for each in profiles):
        yield "a memory profile without phases"
    for index, run in enumerate(result.runs):
        yield from _out_of_range(run, f"runs[{index}]")
        if run.outcome is Outcome.DONE and not all(each >= SHORTEST_STEP_S for each in run.step_times_s or (0.0,)):
            yield f"runs[{index}].outcome={run.outcome} with step_times_s={list(run.step_times_s)[:3]}"


def _out_of_range(value: Prediction | Run, name: str) -> Iterator[str]:
    for path, number in numbers(value, name):
        if not 0 <= number <= LARGEST:
            yield f"{path}={short(number)}"


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
