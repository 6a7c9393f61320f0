"""``scaling estimate``: predict plans that are given in full, one or many."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from strategies.errors import ScalingError


def estimate(
    cases: Annotated[Path, typer.Option(help="File with one JSON object a line (docs/cases.md); '-' for stdin.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line; the only format of --cases.")] = True,
) -> None:
    """Predict the memory of many plans: one line of JSON in, one out, in order."""
    from strategies.cases import answer_line

    for number, line in enumerate(_lines(cases), start=1):
        if line.strip():
            typer.echo(answer_line(line, number=number))


def _lines(path: Path) -> Iterator[str]:
    if str(path) == "-":
        yield from sys.stdin
        return
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise ScalingError(f"cannot read {path}: {error}; give a file with one JSON object a line") from error
