"""``scaling bench``: a matrix of plans run for real, predicted beside measured; and two results compared."""

from __future__ import annotations

import inspect
import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from scaling.cli import options
from strategies.detect import AUTO
from strategies.emit.commands import LauncherName
from strategies.errors import PlanError
from strategies.estimate import Level
from strategies.job import LossImplementation, OptimizerName, Precision
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, OffloadDevice

if TYPE_CHECKING:
    from scaling.bench.bench import Finished
    from scaling.bench.result import Bench

NONE_RAN = 1
"""The exit code where no cell has run to its end."""
REGRESSED = 1
"""The exit code of ``compare`` where something got worse."""
WARM_UP_STEPS = 4
"""The three metered ones, and one more at full speed."""


PLAN_SAYS = (
    *("strategy", "activation_checkpointing", "micro_batch_size", "seq_len", "gradient_accumulation_steps"),
    *("offload_optimizer", "offload_param", "gpus", "gpu", "gpu_memory_gib", "precision", "optimizer"),
    *("gradient_clipping", "loss", "level"),
)
"""Flags that have no meaning beside a plan file."""


class BenchGroup(TyperGroup):
    """Takes words that name no subcommand for those of ``run``: ``scaling bench llama-demo``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = args if args and args[0] in self.commands else ["run", *args]
        parsed: list[str] = super().parse_args(ctx, words)
        return parsed


app = typer.Typer(
    cls=BenchGroup,
    rich_markup_mode=None,
    help="Run a matrix of plans for real, predicted beside measured; report results, compare two.",
)

Csv = Annotated[Path | None, typer.Option("--csv", help="Write one row a cell into this file.", metavar="FILE")]
Plots = Annotated[Path | None, typer.Option("--plot", help="Draw PNG pictures into this folder.", metavar="DIR")]
Html = Annotated[Path | None, typer.Option("--html", help="Write one page with everything.", metavar="FILE")]
Result = Annotated[Path, typer.Argument(help="The --out folder of a bench, or its bench.json.")]


@app.command()
def run(
    model: Annotated[str | None, typer.Argument(help="As for plan; leave it out with --plan.")] = None,
    plan: Annotated[
        list[Path] | None, typer.Option(help="plan.json in place of the matrix; repeatable.", metavar="FILE")
    ] = None,
    strategy: Annotated[
        str, typer.Option(help=f"Out of {', '.join(PYTORCH_STRATEGIES)}; empty: all installed.", metavar="NAMES")
    ] = "",
    activation_checkpointing: Annotated[
        str, typer.Option(help=f"Out of {', '.join(ActivationCheckpointing)}.", metavar="KINDS")
    ] = ActivationCheckpointing.NONE.value,
    micro_batch_size: Annotated[str, typer.Option(help="Samples in one forward of one rank.", metavar="NUMBERS")] = "1",
    seq_len: Annotated[str, typer.Option(help="Tokens in one sample.", metavar="NUMBERS")] = "128",
    gradient_accumulation_steps: Annotated[str, typer.Option(help="Micro batches a step.", metavar="NUMBERS")] = "1",
    offload_optimizer: Annotated[
        str, typer.Option(help="Where optimizer states rest: none, cpu.", metavar="PLACES")
    ] = OffloadDevice.NONE.value,
    offload_param: Annotated[
        str, typer.Option(help="Where weights rest: none, cpu.", metavar="PLACES")
    ] = OffloadDevice.NONE.value,
    launcher: Annotated[
        str, typer.Option(help=f"Out of {', '.join(LauncherName)} (one rank).", metavar="NAMES")
    ] = LauncherName.TORCHRUN.value,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Ranks; default: the GPUs here, or 2 on a CPU.", metavar="N")
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="auto: the GPUs of this machine, or its CPU; or cpu.", metavar="NAME")
    ] = AUTO,
    gpu_memory_gib: options.GpuMemoryGib = None,
    precision: options.PrecisionName = Precision.BF16,
    optimizer: options.Optimizer = OptimizerName.ADAMW,
    gradient_clipping: options.GradientClipping = 1.0,
    loss: options.Loss = LossImplementation.STANDARD,
    level: Annotated[
        Level, typer.Option(help="Of the prediction; instant: closed forms; traced: seconds a cell.", metavar="KIND")
    ] = Level.INSTANT,
    run_too_large: Annotated[
        bool, typer.Option("--run-too-large", help="Also run what does not fit by its prediction.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Timed optimizer steps of a run.", metavar="N")] = 10,
    warm_up: Annotated[
        int, typer.Option(min=3, help="Steps before them; memory is metered in the first 3.", metavar="N")
    ] = WARM_UP_STEPS,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of each cell, in rounds; compare needs 5.", metavar="N")
    ] = 1,
    timeout_minutes: Annotated[float, typer.Option(help="Of one run; it is a result then.", metavar="X")] = 30.0,
    budget_minutes: Annotated[
        float | None, typer.Option(help="Of all; what is left is done by the same command.", metavar="X")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run cells again that did not end well.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of train; repeatable.", metavar="NAME=VALUE")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the result; what is in it already is not run again.", metavar="DIR")
    ] = Path("bench"),
    csv: Csv = None,
    plot: Plots = None,
    html: Html = None,
    json: options.AsJson = False,
) -> None:
    """Run every combination of the lists, each in fresh processes, and print predicted beside measured.

    Lists have commas between their entries. The result is DIR/bench.json; `scaling bench report DIR` prints and draws
    it again, `scaling bench compare A B` says what got worse from A to B. Exit code 0: done, 1: no cell ran to its end,
    2: bad input.
    """
    flags = locals()
    from scaling.bench.bench import Bencher, Limits
    from scaling.cli.bench_cells import planned_from_flags
    from scaling.disk import writing
    from scaling.run_folder import locked_folder

    out = out.expanduser()
    if plan and model is None:
        _refuse_beside_plan(flags)
    planned, running = planned_from_flags(flags)
    limits = Limits(
        repeats=repeats,
        timeout_s=60 * _above_zero(timeout_minutes, "--timeout-minutes"),
        budget_s=math.inf if budget_minutes is None else 60 * _above_zero(budget_minutes, "--budget-minutes"),
        retries=retry,
    )
    with ExitStack() as lock:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            lock.enter_context(locked_folder(out))
        finished = Bencher(planned, folder=out, environment=running.environment, limits=limits).finish()
    any_ran = any(each.done for each in finished.cells)
    reports = Reports(csv=csv, plot=plot if any_ran else None, html=html, json=json)  # there is nothing to draw of none
    _report(_bench(finished), reports, left=finished.num_left, stored=out)
    if not any_ran:
        raise typer.Exit(NONE_RAN)


@app.command()
def report(
    result: Result, csv: Csv = None, plot: Plots = None, html: Html = None, json: options.AsJson = False
) -> None:
    """Print a result again, also while its bench goes on; write it as rows, pictures or a page."""
    from scaling.bench.store import read_bench

    _report(read_bench(result.expanduser()), Reports(csv=csv, plot=plot, html=html, json=json))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="The --out folder of a bench, or its bench.json.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Likewise, of what is to be judged.")],
    json: options.AsJson = False,
) -> None:
    """Say what got worse from A to B by more than noise, in the cells that both have.

    Exit code 0: nothing, 1: something got worse, 2: bad input, or no cell in both.
    """
    from scaling.bench.compare import compare_benches
    from scaling.bench.compare_table import lines
    from scaling.bench.store import read_bench
    from scaling.errors import ReportError
    from strategies.serialize import to_json

    comparison = compare_benches(read_bench(before.expanduser()), read_bench(after.expanduser()))
    typer.echo(to_json(comparison) if json else "\n".join([*lines(comparison), ""]), nl=False)
    if not comparison.findings:
        raise ReportError(f"no cell is in both {before} and {after}; run the same command for both, or compare others")
    if comparison.regressions:
        raise typer.Exit(REGRESSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What is to be made of a result."""

    csv: Path | None
    plot: Path | None
    html: Path | None
    json: bool


def _report(bench: Bench, reports: Reports, *, left: int = 0, stored: Path | None = None) -> None:
    from scaling.bench.table import lines, write_csv
    from strategies.serialize import to_json

    # The table first: a file that cannot be written must not hide what hours of runs have come to.
    rest = [f"{left} more to run: the same command goes on with them"] if left else []
    typer.echo(to_json(bench) if reports.json else "\n".join([*lines(bench), *rest, ""]), nl=False)
    written = [] if stored is None else [stored]
    if reports.csv is not None:
        written.append(reports.csv.expanduser())
        write_csv(bench, written[-1])
    if reports.plot is not None:
        from scaling.bench.pictures import write_pictures  # brings matplotlib

        written += write_pictures(bench, reports.plot.expanduser())
    if reports.html is not None:
        from scaling.bench.page import write_html

        written.append(reports.html.expanduser())
        write_html(bench, written[-1])
    if written and not reports.json:
        typer.echo(f"stored in {', '.join(map(str, written))}")


def _bench(finished: Finished) -> Bench:
    from scaling.bench.result import VERSION, Bench

    return Bench(version=VERSION, cells=finished.cells)


def _refuse_beside_plan(flags: dict[str, Any]) -> None:
    defaults = inspect.signature(run).parameters
    given = [name for name in PLAN_SAYS if flags[name] != defaults[name].default]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise PlanError(f"{names} beside --plan, which says it already; leave one of them out")


def _above_zero(minutes: float, flag: str) -> float:
    if not 0 < minutes < math.inf:
        raise PlanError(f"{flag} {minutes:g} must be above zero; give minutes")
    return minutes
