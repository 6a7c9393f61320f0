"""A cell with its names: one for comparing it, one for its file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from scaling.bench.result import Cell, Choice, Environment, Prediction
from strategies.decision import Decision
from strategies.emit.commands import LauncherName
from strategies.job import Job
from strategies.load_model import resolve_model
from strategies.plan import OffloadDevice, Plan
from strategies.serialize import plain

if TYPE_CHECKING:
    from scaling.levels import Question

KEY_DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How every cell is run."""

    settings: tuple[str, ...]
    """Of training, as name=value."""
    warm_up_steps: int
    timed_steps: int
    environment: Environment


def unplanned_cell(choice: Choice, running: Running, *, question: Question) -> Cell:
    """Return the cell of a choice that has no plan."""
    config = resolve_model(question.model).config
    key = _hash(
        {
            "model": config,
            "choice": plain(choice),
            "job": _given(question.job),
            "gpus": question.cluster.gpus,
            "settings": running.settings,
        }
    )
    return Cell(
        name=_name(choice, running, key=key),
        key=key,
        choice=choice,
        model=question.model,
        num_params=question.spec.num_params,
        precision=question.job.precision,
        gpus=question.cluster.gpus,
        is_cpu=question.cluster.gpu.is_cpu,
        settings=running.settings,
        warm_up_steps=running.warm_up_steps,
        timed_steps=running.timed_steps,
        prediction=None,
        plan=None,
    )


def planned_cell(choice: Choice, decision: Decision, running: Running) -> Cell:
    """Return the cell of a choice and its plan."""
    key = _hash(
        {
            "model": resolve_model(decision.model).config,
            "job": _given(decision.job),
            "plan": _given(decision.plan),
            "launcher": choice.launcher,
            "gpus": decision.cluster.gpus,
            "settings": running.settings,
        }
    )
    return Cell(
        name=_name(choice, running, key=key),
        key=key,
        choice=choice,
        model=decision.model,
        num_params=decision.num_params,
        precision=decision.job.precision,
        gpus=decision.cluster.gpus,
        is_cpu=decision.cluster.gpu.is_cpu,
        settings=running.settings,
        warm_up_steps=running.warm_up_steps,
        timed_steps=running.timed_steps,
        prediction=_prediction(decision),
        plan=plain(decision),
    )


def _prediction(decision: Decision) -> Prediction | None:
    estimate = decision.estimate
    if not estimate.memory.phases:
        return None
    return Prediction(
        level=estimate.level,
        peak_allocated_bytes=estimate.peak_allocated_bytes,
        interval=estimate.interval,
        step_s=decision.time.total_s if decision.time else None,
        memory=estimate.memory,
    )


def _given(noun: Job | Plan) -> dict[str, object]:
    """Return what is not as it is by default: a setting that comes with a later version does not make another cell."""
    return {
        field.name: plain(getattr(noun, field.name))
        for field in fields(noun)
        if getattr(noun, field.name) != field.default
    }


def choice_of(name: str, decision: Decision, launcher: LauncherName) -> Choice:
    """Return the choice that a plan file has made."""
    plan = decision.plan
    return Choice(
        strategy=plan.strategy,
        activation_checkpointing=plan.activation_checkpointing,
        micro_batch_size=plan.micro_batch_size,
        seq_len=decision.job.seq_len,
        gradient_accumulation_steps=plan.gradient_accumulation_steps,
        offload_optimizer=plan.offload_optimizer,
        offload_param=plan.offload_param,
        launcher=launcher,
        plan_name=name,
    )


def _name(choice: Choice, running: Running, *, key: str) -> str:
    """Return a file name that is another one wherever anything that decides the result is."""
    environment = running.environment
    identity = _hash(
        {
            "key": key,
            "steps": (running.warm_up_steps, running.timed_steps),
            "versions": environment.versions,
            "device": environment.device,
            "threads": environment.omp_num_threads,
        }
    )
    offloads = [
        f"{state}-{device}"
        for state, device in (("optimizer", choice.offload_optimizer), ("param", choice.offload_param))
        if device is not OffloadDevice.NONE
    ]
    words = [
        choice.strategy,
        choice.activation_checkpointing,
        f"micro{choice.micro_batch_size}",
        f"seq{choice.seq_len}",
        f"acc{choice.gradient_accumulation_steps}",
        *offloads,
        choice.launcher,
        identity,
    ]
    return "-".join(words)


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]
