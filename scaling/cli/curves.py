"""``scaling curves``: a picture of what runs have logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def curves(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs, as given to --out")],
    plot: Annotated[Path, typer.Option(help="PNG to write")] = Path("curves.png"),
) -> None:
    """Draw loss, learning rate, gradient norm and speed over the steps of one run or several, also while they go on."""
    from scaling.watching.curves import plot_curves, read_curves

    plot_curves([read_curves(folder) for folder in runs], path=plot)
    typer.echo(plot)
