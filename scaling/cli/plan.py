"""``scaling plan``: choose the simplest plan that fits and write its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaling.cli import options
from strategies.job import Job, Precision
from strategies.search import FixedParts


def plan(
    model: options.Model,
    seq_len: options.SeqLen,
    global_batch_size: options.GlobalBatchSize,
    gpus: options.Gpus = None,
    gpu: options.GpuName = "auto",
    gpus_per_node: options.GpusPerNode = None,
    gpu_memory_gib: options.GpuMemoryGib = None,
    host_memory_gib: options.HostMemoryGib = None,
    precision: options.PrecisionName = Precision.BF16,
    gradient_clipping: options.GradientClipping = 1.0,
    strategy: options.Strategy = None,
    activation_checkpointing: options.Checkpointing = None,
    micro_batch_size: options.MicroBatchSize = None,
    out: Annotated[Path | None, typer.Option(help="Folder for plan.json and the launcher files.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another plan in --out.")] = False,
    json: options.AsJson = False,
) -> None:
    """Choose the simplest plan that fits; print where the bytes go and why simpler plans were rejected."""
    from rich.console import Console

    from scaling.report import print_decision, print_launch
    from strategies.emit.files import write_plan
    from strategies.serialize import to_json

    decision = options.decide_from_flags(
        model,
        job=Job(
            seq_len=seq_len,
            global_batch_size=global_batch_size,
            precision=precision,
            gradient_clipping=gradient_clipping,
        ),
        fixed=FixedParts(
            strategy=strategy, activation_checkpointing=activation_checkpointing, micro_batch_size=micro_batch_size
        ),
        gpus=gpus,
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        gpu_memory_gib=gpu_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    out = out.expanduser() if out else None
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
