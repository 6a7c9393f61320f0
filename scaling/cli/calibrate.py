"""``scaling calibrate``: measure this machine, so that later plans know its times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaling.cli import options


def calibrate(
    ranks: Annotated[int | None, typer.Option(help="Processes; default: one a GPU, or 2 on the CPU.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write this file instead of the one in your data folder, which plans use.")
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Measure this machine in under a minute: products, memory, collectives, engines, optimizer, disk."""
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
