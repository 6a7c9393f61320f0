"""``scaling estimate``: predict plans that are given in full, one or many."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli import options
from strategies.errors import PlanError, ScalingError
from strategies.estimate import Level
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.search import FixedParts, candidates

if TYPE_CHECKING:
    from scaling.levels import Question


def estimate(
    model: Annotated[str | None, typer.Argument(help="As for plan; leave it out with --cases.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens in one sample.")] = None,
    micro_batch_size: Annotated[int, typer.Option(min=1, help="Samples in one forward of one GPU.")] = 1,
    gradient_accumulation_steps: Annotated[int, typer.Option(min=1, help="Micro batches a step.")] = 1,
    strategy: Annotated[StrategyName, typer.Option(help="How model states are spread.")] = StrategyName.DDP,
    activation_checkpointing: Annotated[
        ActivationCheckpointing, typer.Option(help="Which activations are computed again.")
    ] = ActivationCheckpointing.NONE,
    checkpoint_every: options.CheckpointEvery = 1,
    reshard_after_forward: options.Reshard = True,
    sync_each_batch: options.Sync = True,
    offload_optimizer: options.OffloadOptimizer = OffloadDevice.NONE,
    offload_param: options.OffloadParam = OffloadDevice.NONE,
    gpus: options.Gpus = None,
    gpu: options.GpuName = "auto",
    gpus_per_node: options.GpusPerNode = None,
    gpu_memory_gib: options.GpuMemoryGib = None,
    host_memory_gib: options.HostMemoryGib = None,
    precision: options.PrecisionName = Precision.BF16,
    optimizer: options.Optimizer = OptimizerName.ADAMW,
    attention: options.AttentionKind = Attention.FLASH,
    loss: options.Loss = LossImplementation.STANDARD,
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargets = None,
    freeze: options.Freeze = None,
    level: options.LevelName = Level.INSTANT,
    cases: Annotated[Path | None, typer.Option(help="File with one JSON object a line, or '-' for stdin.")] = None,
    json: options.AsJson = False,
) -> None:
    """Predict the memory of one plan, by phase and cause; with --cases of many, one line of JSON each."""
    flags = options.with_trained_parts(locals())
    if cases is not None:
        _answer_all(cases, model=model, level=level)
        return
    if model is None or seq_len is None:
        raise PlanError("give a model and --seq-len, or --cases FILE")
    question = options.question_from_flags(
        model,
        # The batch of one sample a GPU until the number of GPUs, which may be detected, is known.
        job=options.picked(Job, flags | {"global_batch_size": 1}),
        gpus=gpus,
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        gpu_memory_gib=gpu_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    _answer_one(
        question, options.picked(FixedParts, flags), steps=gradient_accumulation_steps, level=level, as_json=json
    )


def _answer_one(question: Question, fixed: FixedParts, *, steps: int, level: Level, as_json: bool) -> None:
    from dataclasses import replace

    from rich.console import Console

    from scaling.levels import estimate_at
    from scaling.report import print_estimate
    from strategies.cases import answer
    from strategies.decision import Candidate
    from strategies.serialize import to_json

    batch = (fixed.micro_batch_size or 1) * steps * question.cluster.gpus
    question = replace(question, job=replace(question.job, global_batch_size=batch))
    plan = next(iter(candidates(question.spec, cluster=question.cluster, job=question.job, fixed=fixed)))
    candidate = Candidate(plan=plan, estimate=estimate_at(level, plan, question))
    if as_json:
        typer.echo(
            to_json(answer(candidate, question.spec, cluster=question.cluster, job=question.job, id=question.model)),
            nl=False,
        )
        return
    print_estimate(candidate, question, Console())


def _answer_all(cases: Path, *, model: str | None, level: Level) -> None:
    from strategies.cases import answer_line

    if model is not None:
        raise PlanError(f"model {model} and --cases {cases}: the cases name their models; leave one of them out")
    if level is not Level.INSTANT:
        raise PlanError(f"--cases are answered at the instant level; leave out --level {level}")
    for number, line in enumerate(_lines(cases), start=1):
        if line.strip():
            typer.echo(answer_line(line, number=number))


def _lines(path: Path) -> Iterator[str]:
    if str(path) == "-":
        yield from sys.stdin
        return
    try:
        # A byte that is no UTF-8 spoils its own line only.
        with path.open(encoding="utf-8-sig", errors="backslashreplace") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise ScalingError(f"cannot read {path}: {error}; give a file with one JSON object a line") from error
