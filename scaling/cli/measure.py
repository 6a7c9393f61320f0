"""``scaling measure``: a few real steps of a plan here, predicted beside measured."""

from __future__ import annotations

from typing import Annotated

import typer

from scaling.cli import options
from strategies.cluster import CPU_NAME
from strategies.job import Job, Precision
from strategies.search import FixedParts


def measure(
    model: options.Model,
    seq_len: options.SeqLen,
    global_batch_size: options.GlobalBatchSize,
    gpus: Annotated[int, typer.Option(help="Real ranks to start on this machine.")] = 2,
    simulate: Annotated[int | None, typer.Option(min=1, help="Rank 0 of this many ranks, in one process.")] = None,
    precision: options.PrecisionName = Precision.BF16,
    strategy: options.Strategy = None,
    activation_checkpointing: options.Checkpointing = None,
    micro_batch_size: options.MicroBatchSize = None,
    gpu_memory_gib: options.GpuMemoryGib = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps; states appear in the first.")] = 2,
    plot: options.Plot = None,
    json: options.AsJson = False,
) -> None:
    """Run a few steps of a plan on this machine's CPU, and print predicted beside measured by phase and cause."""
    from rich.console import Console

    from scaling.measure import measure_plan
    from scaling.report import print_measured
    from strategies.serialize import to_json

    decision = options.decide_from_flags(
        model,
        job=Job(seq_len=seq_len, global_batch_size=global_batch_size, precision=precision),
        fixed=FixedParts(
            strategy=strategy, activation_checkpointing=activation_checkpointing, micro_batch_size=micro_batch_size
        ),
        gpus=simulate or gpus,
        gpu=CPU_NAME,
        gpu_memory_gib=gpu_memory_gib,
    )
    measured = measure_plan(decision, num_steps=steps, simulated=simulate is not None, picture=plot)
    if json:
        typer.echo(to_json(measured), nl=False)
        return
    print_measured(measured, Console())
