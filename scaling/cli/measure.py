"""``scaling measure``: a few real steps of a plan here, predicted beside measured."""

from __future__ import annotations

from typing import Annotated

import typer

from scaling.cli import options
from strategies.cluster import CPU_NAME
from strategies.detect import LARGEST
from strategies.errors import PlanError
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.plan import OffloadDevice
from strategies.search import FixedParts


def measure(
    model: options.Model,
    seq_len: options.SeqLen,
    global_batch_size: options.GlobalBatchSize,
    gpus: Annotated[
        int, typer.Option(min=1, help="Ranks: real ones to start here, or those of a trace.", metavar="N")
    ] = 2,
    simulate: Annotated[
        int | None, typer.Option(min=1, help="Rank 0 of this many ranks, in one process.", metavar="N")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Trace without data: any model, any GPU, seconds.")] = False,
    gpu: Annotated[
        str, typer.Option(help="GPU of configs/gpus.csv, with --trace; else the CPU.", metavar="NAME")
    ] = CPU_NAME,
    precision: options.PrecisionName = Precision.BF16,
    strategy: options.Strategy = None,
    activation_checkpointing: options.Checkpointing = None,
    checkpoint_every: options.CheckpointEvery = 1,
    micro_batch_size: options.MicroBatchSize = None,
    reshard_after_forward: options.Reshard = True,
    sync_each_batch: options.Sync = True,
    offload_optimizer: options.OffloadOptimizer = OffloadDevice.NONE,
    offload_param: options.OffloadParam = OffloadDevice.NONE,
    optimizer: options.Optimizer = OptimizerName.ADAMW,
    attention: options.AttentionKind = Attention.FLASH,
    loss: options.Loss = LossImplementation.STANDARD,
    gpu_memory_gib: options.GpuMemoryGib = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps; states appear in the first.", metavar="N")] = 2,
    plot: options.Plot = None,
    json: options.AsJson = False,
) -> None:
    """Run a few steps of a plan on this machine's CPU, and print predicted beside measured by phase and cause."""
    flags = locals()
    from rich.console import Console

    from scaling.cli.pictures import require_pictures
    from scaling.comparison import compare, record
    from scaling.measure import Method
    from scaling.report import print_measured
    from strategies.serialize import to_json

    _check_together(trace=trace, simulate=simulate, gpu=gpu)
    require_pictures(plot=plot)
    question = options.question_from_flags(
        model,
        job=options.picked(Job, flags),
        gpus=simulate or gpus,
        gpu=gpu,
        # Neither a trace nor a simulated rank needs the memory that the plan is about.
        gpu_memory_gib=gpu_memory_gib or (LARGEST if gpu == CPU_NAME and (trace or simulate) else None),
    )
    decision = options.decide_from_flags(question, options.picked(FixedParts, flags))
    method = Method.TRACED if trace else (Method.REAL if simulate is None else Method.SIMULATED)
    comparison = compare(decision, num_steps=steps, method=method, picture=plot)
    record(comparison)
    if json:
        typer.echo(to_json(comparison), nl=False)
        return
    print_measured(comparison, Console())


def _check_together(*, trace: bool, simulate: int | None, gpu: str) -> None:
    if trace and simulate is not None:
        raise PlanError(f"--trace and --simulate {simulate} are two ways; give one of them (--trace takes --gpus)")
    if gpu != CPU_NAME and not trace:
        raise PlanError(f"--gpu {gpu}: steps are run on this machine's CPU; add --trace for another device")
