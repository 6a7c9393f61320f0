"""Flags that several commands take, and the decision they add up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from strategies.decision import Decision
from strategies.errors import JobError
from strategies.estimate import NO_ESTIMATE, Level
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.plan import ActivationCheckpointing, Framework, OffloadDevice, Plan, StrategyName
from strategies.planner import sweep as planner
from strategies.search import FixedParts
from strategies.trained import ALL_LINEAR, Lora

if TYPE_CHECKING:
    from scaling.levels import Question

T = TypeVar("T")


def one_of(kind: type[StrEnum], text: str) -> str:
    """Return the help of a flag that takes one of a few words: as metavar they would push all help aside."""
    return f"{text}: {', '.join(kind)}."


class OpenLoss(StrEnum):
    """As `LossImplementation`, or left to the search."""

    AUTO = "auto"
    STANDARD = "standard"
    CHUNKED = "chunked"
    FUSED = "fused"


Model = Annotated[str, typer.Argument(help="Preset, folder, config.json or Hugging Face hub id.")]
SeqLen = Annotated[int, typer.Option(help="Tokens in one sample.", metavar="N")]
MaybeSeqLen = Annotated[int | None, typer.Option(help="Tokens in one sample.", metavar="N")]
GlobalBatchSize = Annotated[int, typer.Option(help="Samples per optimizer step, over all GPUs.", metavar="N")]
MaybeGlobalBatchSize = Annotated[
    int | None, typer.Option(help="Samples per optimizer step, over all GPUs.", metavar="N")
]
PrecisionName = Annotated[
    Precision, typer.Option(help=one_of(Precision, "Number formats of weights and states"), metavar="KIND")
]
GradientClipping = Annotated[float, typer.Option(help="Largest global gradient norm; 0 = off.", metavar="X")]
Optimizer = Annotated[OptimizerName, typer.Option(help=one_of(OptimizerName, "Update rule"), metavar="NAME")]
AttentionKind = Annotated[
    Attention,
    typer.Option(help="flash: fused; eager: quadratic in the sequence length.", metavar="KIND"),
]
Loss = Annotated[
    LossImplementation, typer.Option(help=one_of(LossImplementation, "How logits become a loss"), metavar="KIND")
]
LossOrAuto = Annotated[
    OpenLoss,
    typer.Option(
        help=one_of(OpenLoss, "How logits become a loss (auto is standard or fused, what is faster; instant level)"),
        metavar="KIND",
    ),
]
LoraRank = Annotated[
    int | None, typer.Option(help="Train LoRA adapters of this rank, not the model itself.", metavar="N")
]
LoraTargets = Annotated[
    str | None,
    typer.Option(
        help="Linear layers with adapters: names and commas, or all-linear, which is the default.", metavar="NAMES"
    ),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(
        help="Parameters not trained: a module or pattern; repeat it, the last one decides; ! trains.", metavar="NAME"
    ),
]
Gpus = Annotated[int | None, typer.Option(help="GPUs in all; default: those of this machine.", metavar="N")]
GpuName = Annotated[str, typer.Option(help="GPU of configs/gpus.csv, 'cpu', or 'auto' to detect.", metavar="NAME")]
GpusPerNode = Annotated[int | None, typer.Option(help="GPUs in one machine; default: at most 8.", metavar="N")]
GpuMemoryGib = Annotated[float | None, typer.Option(help="Memory of one GPU instead of the known one.", metavar="GIB")]
HostMemoryGib = Annotated[float | None, typer.Option(help="Memory of one machine.", metavar="GIB")]
FrameworkName = Annotated[
    Framework | None,
    typer.Option(help="pytorch, or tensorflow, which has one strategy: mirrored; default: pytorch.", metavar="NAME"),
]
Strategy = Annotated[
    StrategyName | None, typer.Option(help=one_of(StrategyName, "Take this strategy or refuse"), metavar="NAME")
]
Checkpointing = Annotated[
    ActivationCheckpointing | None,
    typer.Option(
        help=one_of(ActivationCheckpointing, "Which activations are computed again; take this or refuse"),
        metavar="KIND",
    ),
]
CheckpointEvery = Annotated[int | None, typer.Option(min=1, help="Checkpoint every k-th block only.", metavar="K")]
MicroBatchSize = Annotated[int | None, typer.Option(help="Take this micro batch or refuse.", metavar="N")]
OffloadOptimizer = Annotated[
    OffloadDevice | None,
    typer.Option(help=one_of(OffloadDevice, "Where optimizer states rest; none is a choice"), metavar="PLACE"),
]
OffloadParam = Annotated[
    OffloadDevice | None,
    typer.Option(help=one_of(OffloadDevice, "Where weights rest (zero3, fsdp2)"), metavar="PLACE"),
]
Reshard = Annotated[
    bool | None,
    typer.Option(help="fsdp2: blocks give their gathered weights back after forward."),
]
Sync = Annotated[
    bool | None,
    typer.Option(help="fsdp2: gradients are reduced after every micro batch."),
]
Safety = Annotated[
    float,
    typer.Option(
        help="Coverage of the interval whose upper end must fit the GPU; 0: the point estimate.", metavar="SHARE"
    ),
]
LevelName = Annotated[
    Level,
    typer.Option(help="instant: closed forms; traced: seconds; measured: real steps on CPU.", metavar="KIND"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw memory over time into this file: .png, .svg or .pdf.", metavar="FILE"),
]


def with_trained_parts(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``flags`` with what is trained as the fields of a `Job`.

    Raises:
        JobError: targets are given and no rank.
    """
    rank, targets = flags["lora_rank"], flags["lora_targets"]
    if rank is None and targets is not None:
        raise JobError(f"--lora-targets {targets} names layers for adapters; give their --lora-rank too")
    names = tuple(name.strip() for name in (targets or ALL_LINEAR).split(","))
    lora = None if rank is None else Lora(rank=rank, target_modules=names)
    return {**flags, "lora": lora, "freeze": tuple(flags["freeze"] or ())}


def picked(kind: type[T], flags: Mapping[str, Any]) -> T:
    """Return the noun that ``flags`` describe: those with the names of its fields, as every flag has."""
    return kind(**{field.name: flags[field.name] for field in fields(cast(Any, kind)) if field.name in flags})


def question_from_flags(
    model: str,
    *,
    job: Job,
    gpus: int | None,
    gpu: str,
    gpus_per_node: int | None = None,
    gpu_memory_gib: float | None = None,
    host_memory_gib: float | None = None,
) -> Question:
    """Return what the flags describe: the model, the job and the cluster.

    Raises:
        ScalingError: the model is not known or the flags contradict each other.
    """
    from scaling.levels import Question
    from strategies.detect import build_cluster
    from strategies.load_model import model_spec, resolve_model

    cluster = build_cluster(
        gpu=gpu,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        gpu_memory_gib=gpu_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    resolved = resolve_model(model)
    # A path is stored whole: training may start in another folder, where the same name could be another model.
    reference = str(Path(model).expanduser().resolve()) if resolved.is_local else model
    return Question(model=reference, spec=model_spec(resolved), cluster=cluster, job=job)


def decide_from_flags(
    question: Question,
    fixed: FixedParts,
    *,
    level: Level = Level.INSTANT,
    safety: float = 0.0,
) -> Decision:
    """Return the planner's decision for what the flags describe; by the point estimate, where nothing else is said.

    Raises:
        ScalingError: the flags contradict each other or nothing fits.
    """
    from scaling.levels import estimator
    from strategies.select import decide

    return decide(
        question.spec,
        cluster=question.cluster,
        job=question.job,
        fixed=fixed,
        model=question.model,
        estimate=None if level is Level.INSTANT else estimator(level, question),
        safety=safety,
    )


def planner_question(question: Question, fixed: FixedParts, *, safety: float, for_training: bool) -> planner.Question:
    """Return the question as the planner takes it; ``for_training``: only plans that our trainer can run."""
    return planner.Question(
        spec=question.spec,
        cluster=question.cluster,
        job=question.job,
        fixed=fixed,
        safety=safety,
        why_not=why_not_trainable(question) if for_training else None,
    )


def why_not_trainable(question: Question) -> Callable[[Job, Plan], str | None]:
    """Return what tells why our trainer cannot run a plan; None where it can."""
    from scaling import check_plan
    from scaling.errors import EngineError

    def why_not(job: Job, plan: Plan) -> str | None:
        if plan.strategy.framework is Framework.TENSORFLOW:
            return None  # what its engine does not run is refused wherever such a plan is made
        decision = Decision(
            model=question.model,
            num_params=question.spec.num_params,
            cluster=question.cluster,
            job=job,
            plan=plan,
            estimate=NO_ESTIMATE,
        )
        try:
            check_plan.require_trainable_model(question.spec)
        except EngineError as error:
            return str(error)
        return check_plan.why_not_trainable(decision)

    return why_not
