"""``scaling estimate``: predict plans that are given in full, one or many."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli import options
from scaling.cli.options import one_of
from strategies.errors import PlanError, ScalingError
from strategies.estimate import Level
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName, accumulation_steps
from strategies.search import FixedParts, candidates

if TYPE_CHECKING:
    from scaling.levels import Question


def estimate(
    model: Annotated[str | None, typer.Argument(help="As for plan; leave it out with --cases.")] = None,
    seq_len: options.MaybeSeqLen = None,
    global_batch_size: options.MaybeGlobalBatchSize = None,
    micro_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in one forward of one GPU; default: 1.", metavar="N")
    ] = None,
    gradient_accumulation_steps: Annotated[
        int | None, typer.Option(min=1, help="Micro batches a step; default: what the batch asks for.", metavar="N")
    ] = None,
    strategy: Annotated[
        StrategyName, typer.Option(help=one_of(StrategyName, "How model states are spread"), metavar="NAME")
    ] = StrategyName.DDP,
    activation_checkpointing: Annotated[
        ActivationCheckpointing,
        typer.Option(help=one_of(ActivationCheckpointing, "Which activations are computed again"), metavar="KIND"),
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
    cases: Annotated[
        Path | None, typer.Option(help="File with one JSON object a line, or '-' for stdin.", metavar="FILE")
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Predict the memory and step time of one plan; with --cases of many, one line of JSON each.

    An answer is exit code 0, also where the plan does not fit.
    """
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
    batch = Batch.of(
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        gpus=question.cluster.gpus,
    )
    question = replace(question, job=replace(question.job, global_batch_size=batch.global_batch_size))
    fixed = replace(options.picked(FixedParts, flags), micro_batch_size=batch.micro_batch_size)
    _answer_one(question, fixed, level=level, as_json=json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How many samples a step has, and how many of them a GPU takes at once."""

    global_batch_size: int
    micro_batch_size: int

    @classmethod
    def of(
        cls,
        *,
        global_batch_size: int | None,
        micro_batch_size: int | None,
        gradient_accumulation_steps: int | None,
        gpus: int,
    ) -> Batch:
        """Return the batch that the given numbers describe; those left out follow, a micro batch of one before others.

        Raises:
            PlanError: they contradict each other.
        """
        micro, steps = micro_batch_size, gradient_accumulation_steps
        if global_batch_size is None:
            return cls(global_batch_size=(micro or 1) * (steps or 1) * gpus, micro_batch_size=micro or 1)
        if steps is None:
            accumulation_steps(
                global_batch_size=global_batch_size, micro_batch_size=micro or 1, data_parallel_size=gpus
            )
            return cls(global_batch_size=global_batch_size, micro_batch_size=micro or 1)
        micro = micro or max(global_batch_size // (steps * gpus), 1)
        if micro * steps * gpus != global_batch_size:
            raise PlanError(
                f"global_batch_size={global_batch_size} is not micro_batch_size={micro} * "
                f"gradient_accumulation_steps={steps} * gpus={gpus} = {micro * steps * gpus}; leave one of them out"
            )
        return cls(global_batch_size=global_batch_size, micro_batch_size=micro)


def _answer_one(question: Question, fixed: FixedParts, *, level: Level, as_json: bool) -> None:
    from rich.console import Console

    from scaling.levels import estimate_at
    from scaling.report import print_estimate
    from strategies.cases import answer
    from strategies.decision import Candidate
    from strategies.serialize import to_json

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
