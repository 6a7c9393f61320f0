"""``scaling plan``: choose the fastest plan that fits, say why, and write its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaling.cli import options
from strategies.estimate import Level
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
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
    optimizer: options.Optimizer = OptimizerName.ADAMW,
    attention: options.AttentionKind = Attention.FLASH,
    loss: options.LossOrAuto = options.OpenLoss.AUTO,
    strategy: options.Strategy = None,
    activation_checkpointing: options.Checkpointing = None,
    checkpoint_every: options.CheckpointEvery = None,
    micro_batch_size: options.MicroBatchSize = None,
    reshard_after_forward: options.Reshard = None,
    offload_optimizer: options.OffloadOptimizer = None,
    offload_param: options.OffloadParam = None,
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargets = None,
    freeze: options.Freeze = None,
    safety: options.Safety = 0.9,
    level: options.LevelName = Level.INSTANT,
    out: Annotated[Path | None, typer.Option(help="Folder for plan.json and the launcher files.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another plan in --out.")] = False,
    json: options.AsJson = False,
) -> None:
    """Choose the fastest plan that fits; print where bytes and seconds go and why other plans were not taken."""
    flags = options.with_trained_parts(locals())
    flags["searches_loss"] = loss is options.OpenLoss.AUTO
    flags["loss"] = LossImplementation.STANDARD if flags["searches_loss"] else LossImplementation(loss)
    from rich.console import Console

    from scaling.report import print_decision, print_launch
    from strategies.emit.files import write_plan
    from strategies.serialize import to_json

    question = options.question_from_flags(
        model,
        job=options.picked(Job, flags),
        gpus=gpus,
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        gpu_memory_gib=gpu_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    decision = options.decide_from_flags(
        question,
        options.picked(FixedParts, flags),
        level=level,
        safety=safety,
        # Files and launch lines that the trainer would refuse must not be written.
        why_not=options.why_not_trainable(question) if out else None,
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
