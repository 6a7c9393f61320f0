"""``scaling plan``: choose the fastest plan that fits, say why, and write its files; or turn the question round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaling.cli import options
from strategies.estimate import Level
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.planner.safety import DEFAULT_SAFETY
from strategies.search import FixedParts, named_strategy


def plan(
    model: options.Model,
    seq_len: options.MaybeSeqLen = None,
    global_batch_size: options.MaybeGlobalBatchSize = None,
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
    framework: options.FrameworkName = None,
    strategy: options.Strategy = None,
    activation_checkpointing: options.Checkpointing = None,
    checkpoint_every: options.CheckpointEvery = None,
    micro_batch_size: options.MicroBatchSize = None,
    reshard_after_forward: options.Reshard = None,
    sync_each_batch: options.Sync = None,
    offload_optimizer: options.OffloadOptimizer = None,
    offload_param: options.OffloadParam = None,
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargets = None,
    freeze: options.Freeze = None,
    safety: options.Safety = DEFAULT_SAFETY,
    level: options.LevelName = Level.INSTANT,
    what_if: Annotated[bool, typer.Option("--what-if", help="Also say what would make it faster.")] = False,
    longest_seq_len: Annotated[
        bool, typer.Option("--longest-seq-len", help="In place of --seq-len: find the longest that fits.")
    ] = False,
    best_global_batch_size: Annotated[
        bool,
        typer.Option(
            "--best-global-batch-size", help="In place of --global-batch-size: find the one with the most samples/s."
        ),
    ] = False,
    largest_model: Annotated[
        bool,
        typer.Option("--largest-model", help="In place of the model: find the largest preset of its family that fits."),
    ] = False,
    smallest_cluster: Annotated[
        bool, typer.Option("--smallest-cluster", help="In place of --gpus: find the fewest that fit.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for plan.json and the launcher files.", metavar="DIR")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another plan in --out.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the plans into this file: .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the answer into this file as one page.", metavar="FILE")
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Choose the fastest plan that fits; print where bytes and seconds go and why other plans were not taken."""
    flags = options.with_trained_parts(locals())
    from rich.console import Console

    from scaling.cli.pictures import require_pictures, write_pictures
    from scaling.cli.planning import Turn, chosen_turn, plan_or_suggest, training_notes, turned
    from scaling.plan_report import print_decision
    from scaling.report import print_launch
    from strategies.emit.files import write_plan
    from strategies.serialize import to_json

    require_pictures(plot=plot)
    searches_loss = loss is options.OpenLoss.AUTO
    turn = chosen_turn(flags)
    flags |= {
        "strategy": named_strategy(framework, strategy),
        "loss": LossImplementation.STANDARD if searches_loss else LossImplementation(loss),
        "searches_loss": searches_loss,
        # What is asked for is not given: any value that every model and cluster takes stands in for it.
        "seq_len": 2 if turn is Turn.SEQ_LEN else seq_len,
        "global_batch_size": 1 if turn is Turn.GLOBAL_BATCH_SIZE else global_batch_size,
    }
    question = options.question_from_flags(
        model,
        job=options.picked(Job, flags),
        gpus=1 if turn is Turn.CLUSTER else gpus,
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        gpu_memory_gib=gpu_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    ask = options.planner_question(question, options.picked(FixedParts, flags), safety=safety, for_training=bool(out))
    answer = turned(turn, ask)
    decision = plan_or_suggest(
        answer.question, model=answer.model or question.model, level=level, wants_suggestions=what_if
    )
    out = out.expanduser() if out else None
    written = write_plan(decision, folder=out, overwrite=overwrite) if out else []
    pictures = write_pictures(decision, plot=plot, html=html)
    if json:
        typer.echo(to_json(decision), nl=False)
        return
    console = Console()
    if answer.headline:
        console.print(f"[bold]{answer.headline}[/bold]", highlight=False, soft_wrap=True)
    print_decision(decision, answer.question.spec, console)
    for note in training_notes(decision, answer.question, for_training=out is not None):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    for path in pictures:
        console.print(f"Wrote {path}", highlight=False, markup=False, soft_wrap=True)
    if out:
        print_launch(decision, folder=out, written=written, console=console)
    else:
        console.print("Give --out DIR to write plan.json, launcher files and launch commands.", soft_wrap=True)
