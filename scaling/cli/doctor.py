"""``scaling doctor``: what this machine can run, and what is missing for a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaling.cli import options


def doctor(
    plan: Annotated[
        Path | None, typer.Option(help="plan.json: can it run here? Default: what any plan would meet.", metavar="FILE")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the run would write.", metavar="DIR")] = Path("."),
    nvme_path: Annotated[
        Path | None, typer.Option(help="Folder on NVMe for offloaded states: looked at and timed.", metavar="DIR")
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Where ranks would meet; default: MASTER_PORT, else 29500.", metavar="N"),
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Look at this machine: devices, packages, compilers, memory, limits, disks, port and environment, with the fixes.

    Nothing is changed. Exit code 0: no error (there may be warnings), 2: errors.
    """
    import json as as_json
    import os

    from scaling.doctor import report
    from scaling.doctor.asked import Asked, Needs
    from scaling.doctor.diagnose import diagnose
    from scaling.plan_file import read_plan
    from scaling.severity import exit_code

    needs = None if plan is None else Needs(decision=read_plan(plan))
    found = diagnose(Asked(plan=needs, environ=os.environ, out=out, nvme_path=nvme_path, port=master_port))
    if json:
        typer.echo(as_json.dumps(report.as_json(found, plan=None if plan is None else str(plan)), indent=2))
    else:
        typer.echo("\n".join(report.lines(found)))
    raise typer.Exit(exit_code(found.findings))
