"""``scaling compare-frameworks``: the same steps in PyTorch and in TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaling.cli import options


def compare_frameworks(
    plan: Annotated[Path, typer.Option(help="plan.json of either framework.", metavar="FILE")],
    out: Annotated[
        Path, typer.Option(help="Empty folder for both runs, comparison.json and comparison.png.", metavar="DIR")
    ],
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.", metavar="N")] = 20,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of train, for both; repeatable.", metavar="NAME=VALUE")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw into this file instead of the folder's comparison.png.", metavar="FILE")
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Run the same steps of a plan in both frameworks, one after the other, and print them side by side.

    Both start from the same weights and see the same samples in the same order, on the devices that the plan is for.
    """
    from scaling.disk import writing
    from scaling.frameworks.compare import compare_frameworks as compare
    from scaling.frameworks.picture import plot_comparison
    from scaling.frameworks.table import lines
    from scaling.plan_file import read_plan
    from scaling.ranks import results_only_on_stdout
    from strategies.serialize import to_json

    out = out.expanduser()
    with results_only_on_stdout() as results:
        comparison = compare(read_plan(plan), steps=steps, settings=set_ or [], out=out)
        result, picture = out / "comparison.json", plot or out / "comparison.png"
        with writing(result):
            result.write_text(to_json(comparison))
        plot_comparison(comparison, path=picture)
        stored = f"stored in {result} and {picture}"
        results.write(to_json(comparison) if json else "\n".join([*lines(comparison), stored]) + "\n")
