"""The command ``scaling``. Heavy imports stay inside handlers: planning works without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from strategies.errors import ScalingError
from strategies.job import Precision
from strategies.plan import ActivationCheckpointing, StrategyName

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan which training strategy fits your GPUs, then train with it.",
)


@app.callback()
def _commands() -> None:
    """Keep `scaling plan` a subcommand while it is the only one."""


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="Preset, folder, config.json or Hugging Face hub id.")],
    seq_len: Annotated[int, typer.Option(help="Tokens in one sample.")],
    global_batch_size: Annotated[int, typer.Option(help="Samples per optimizer step, over all GPUs.")],
    gpus: Annotated[int | None, typer.Option(help="GPUs in all; default: those of this machine.")] = None,
    gpu: Annotated[str, typer.Option(help="GPU of configs/gpus.csv, 'cpu', or 'auto' to detect.")] = "auto",
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs in one machine; default: at most 8.")] = None,
    gpu_memory_gib: Annotated[float | None, typer.Option(help="Memory of one GPU instead of the known one.")] = None,
    host_memory_gib: Annotated[float | None, typer.Option(help="Memory of one machine.")] = None,
    precision: Annotated[Precision, typer.Option(help="Number formats of weights and states.")] = Precision.BF16,
    gradient_clipping: Annotated[float, typer.Option(help="Largest global gradient norm; 0 = off.")] = 1.0,
    strategy: Annotated[StrategyName | None, typer.Option(help="Take this strategy or refuse.")] = None,
    activation_checkpointing: Annotated[
        ActivationCheckpointing | None, typer.Option(help="Take this setting or refuse.")
    ] = None,
    micro_batch_size: Annotated[int | None, typer.Option(help="Take this micro batch or refuse.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for plan.json and the launcher files.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another plan in --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the decision as JSON.")] = False,
) -> None:
    """Choose the simplest plan that fits; print where the bytes go and why simpler plans were rejected."""
    from rich.console import Console

    from scaling.detect import build_cluster
    from scaling.report import print_decision, print_launch
    from strategies.emit.files import write_plan
    from strategies.job import Job
    from strategies.load_model import load_model_spec
    from strategies.search import FixedParts
    from strategies.select import decide
    from strategies.serialize import to_json

    job = Job(
        seq_len=seq_len,
        global_batch_size=global_batch_size,
        precision=precision,
        gradient_clipping=gradient_clipping,
    )
    cluster = build_cluster(
        gpu=gpu,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        gpu_memory_gib=gpu_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    fixed = FixedParts(
        strategy=strategy, activation_checkpointing=activation_checkpointing, micro_batch_size=micro_batch_size
    )
    decision = decide(load_model_spec(model), cluster=cluster, job=job, fixed=fixed, model=model)
    written = write_plan(decision, folder=out, overwrite=overwrite) if out else []
    if json:
        typer.echo(to_json(decision), nl=False)
        return
    console = Console()
    print_decision(decision, console)
    if out:
        print_launch(decision, folder=out, written=written, console=console)
    else:
        console.print("Give --out DIR to write plan.json, launcher files and launch commands.", soft_wrap=True)


def main() -> None:
    """Run the command line; a mistake in the input is one line on stderr and exit code 2 (3: nothing fits)."""
    try:
        app()
    except ScalingError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
