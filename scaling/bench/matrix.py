"""The cells of a bench: every combination of the settings that are varied, each planned and predicted, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from scaling.bench.axes import Axes
from scaling.bench.cells import Running, choice_of, planned_cell, unplanned_cell
from scaling.bench.result import Cell, Choice
from scaling.check_plan import check_batch, require_installed, require_trainable, require_trainable_model
from strategies.decision import Decision
from strategies.emit.commands import LauncherName
from strategies.errors import PlanError, ScalingError
from strategies.estimate import Level
from strategies.explain import largest_causes
from strategies.job import OptimizerName
from strategies.learning.step_correction import known_step_time
from strategies.load_model import model_spec, resolve_model
from strategies.plan import StrategyName
from strategies.planner.safety import capacity, shortage
from strategies.search import FixedParts, candidates
from strategies.units import format_bytes

if TYPE_CHECKING:
    from scaling.levels import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One cell, and why it is not run, where it is not."""

    cell: Cell
    decision: Decision | None
    """What is run; None where there can be no such plan."""
    refused: str = ""


def planned_cells(
    axes: Axes, question: Question, running: Running, *, level: Level = Level.INSTANT, runs_too_large: bool = False
) -> Iterator[Planned]:
    """Yield every cell of the matrix; ``question``: the model, the cluster, and the job but for its batch and sequence.

    ``runs_too_large``: whether plans run that do not fit by their prediction.
    """
    for choice in axes.choices():
        decision, refused = None, ""
        try:
            decision = _decision(choice, question, level=level)
            _require_possible(decision, choice.launcher, runs_too_large=runs_too_large)
        except ScalingError as error:
            refused = str(error)
        yield Planned(cell=_cell(choice, decision, question, running), decision=decision, refused=refused)


def cells_of_plans(
    decisions: Sequence[tuple[str, Decision]],
    launchers: Sequence[LauncherName],
    running: Running,
    *,
    runs_too_large: bool = False,
) -> Iterator[Planned]:
    """Yield a cell for each plan and launcher; plans come with the names that tell them apart."""
    for launcher, (name, decision) in product(launchers, decisions):
        refused = ""
        try:
            _require_possible(decision, launcher, runs_too_large=runs_too_large)
        except ScalingError as error:
            refused = str(error)
        cell = planned_cell(choice_of(name, decision, launcher), decision, running)
        yield Planned(cell=cell, decision=decision, refused=refused)


def _decision(choice: Choice, question: Question, *, level: Level) -> Decision:
    """Return the plan of a choice as it is, with nothing adapted so that it fits, and its prediction."""
    from scaling.levels import estimate_at

    samples = choice.micro_batch_size * choice.gradient_accumulation_steps * question.cluster.gpus
    job = replace(question.job, seq_len=choice.seq_len, global_batch_size=samples)
    if (choice.strategy, job.optimizer) == (StrategyName.FSDP2, OptimizerName.SGD):
        job = replace(job, fused_optimizer=False)  # torch 2.13 does not know how its fused kernel runs on shards
    asked = replace(question, job=job)
    fixed = FixedParts(
        strategy=choice.strategy,
        activation_checkpointing=choice.activation_checkpointing,
        micro_batch_size=choice.micro_batch_size,
        offload_optimizer=choice.offload_optimizer,
        offload_param=choice.offload_param,
    )
    plan = next(iter(candidates(question.spec, cluster=question.cluster, job=job, fixed=fixed)))
    return Decision(
        model=question.model,
        num_params=question.spec.num_params,
        cluster=question.cluster,
        job=job,
        plan=plan,
        estimate=estimate_at(level, plan, asked),
        time=known_step_time(question.spec, cluster=question.cluster, job=job, plan=plan),
    )


def _require_possible(decision: Decision, launcher: LauncherName, *, runs_too_large: bool) -> None:
    """Refuse what our trainer cannot run here, and what does not fit by its prediction.

    Raises:
        ScalingError: says why.
    """
    check_batch(decision)
    require_trainable_model(model_spec(resolve_model(decision.model)))
    require_trainable(decision)
    require_installed(decision)
    if launcher is LauncherName.PYTHON and decision.cluster.gpus > 1:
        raise PlanError(f"launcher={launcher} starts one process, but gpus={decision.cluster.gpus}; give another")
    lacking = shortage(decision.estimate, cluster=decision.cluster)
    if lacking is not None and not runs_too_large:
        resource, over = lacking
        has = format_bytes(capacity(resource, decision.cluster))
        raise PlanError(
            f"does not fit by its prediction: {format_bytes(over)} over the {has} of {resource} "
            f"({largest_causes(decision.estimate.memory.peak)}); --run-too-large runs it all the same"
        )


def _cell(choice: Choice, decision: Decision | None, question: Question, running: Running) -> Cell:
    if decision is not None:
        return planned_cell(choice, decision, running)
    return unplanned_cell(choice, running, question=question)
