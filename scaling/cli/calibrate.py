"""``scaling calibrate``: measure this machine, or learn from the runs on record, so that later plans know more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaling.cli import options
from strategies.errors import CalibrationError


def calibrate(
    ranks: Annotated[int | None, typer.Option(help="Processes; default: one a GPU, or 2 on the CPU.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write this file instead of the one in your data folder, which plans use.")
    ] = None,
    from_records: Annotated[
        bool, typer.Option("--from-records", help="Measure nothing: learn from your runs, predicted beside measured.")
    ] = False,
    json: options.AsJson = False,
) -> None:
    """Measure this machine in under a minute: products, memory, collectives, engines, optimizer, disk."""
    if not from_records:
        _measure(ranks, out, json=json)
        return
    if ranks is not None:
        raise CalibrationError(f"--from-records measures nothing, so that --ranks {ranks} has no effect; leave it out")
    _learn(out, json=json)


def _measure(ranks: int | None, out: Path | None, *, json: bool) -> None:
    from rich.console import Console

    from scaling.calibrate import calibrate, default_ranks
    from scaling.calibrate.report import print_calibration
    from scaling.ranks import results_only_on_stdout
    from strategies.serialize import to_json
    from strategies.time.calibration import calibration_path, prepared, write_calibration

    num_ranks = default_ranks() if ranks is None else ranks
    folder = prepared(out.expanduser().parent if out else calibration_path("cpu").parent)
    with results_only_on_stdout():
        calibration = calibrate(ranks=num_ranks, folder=folder)
    path = out.expanduser() if out else calibration_path(calibration.device)
    write_calibration(calibration, path)
    if json:
        typer.echo(to_json(calibration), nl=False)
        return
    print_calibration(calibration, path=path, is_used=out is None, console=Console())


def _learn(out: Path | None, *, json: bool) -> None:
    from rich.console import Console

    from scaling.learned_report import print_lessons
    from strategies.learning.fit import learn, require_enough
    from strategies.learning.learned import learned_path, write_learned
    from strategies.learning.lessons import Lessons, lessons_of
    from strategies.learning.run_store import read_runs, required_path
    from strategies.serialize import to_json

    records = required_path()
    runs = read_runs(records)
    found, left_out = learn(runs)
    require_enough(found, num_runs=len(runs), left_out=left_out, where=records)
    path = out.expanduser() if out else learned_path()
    write_learned(found, path)
    lessons = Lessons(
        file=str(path),
        records=str(records),
        num_runs=len(runs),
        left_out=left_out,
        lessons=tuple(lessons_of(found)),
    )
    if json:
        typer.echo(to_json(lessons), nl=False)
        return
    print_lessons(lessons, is_used=out is None, console=Console())
