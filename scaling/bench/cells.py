"""A cell with its names: one for comparing it, one for its file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from scaling.bench.result import Cell, Choice, Environment
from strategies.decision import Decision
from strategies.emit.commands import LauncherName
from strategies.job import Job
from strategies.load_model import resolve_model
from strategies.plan import OffloadDevice
from strategies.serialize import plain

KEY_DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How every cell is run."""

    settings: tuple[str, ...]
    """Of training, as name=value."""
    warm_up_steps: int
    timed_steps: int
    environment: Environment


def unplanned_cell(choice: Choice, running: Running, *, model: str, job: Job, gpus: int) -> Cell:
    """Return the cell of a choice that has no plan."""
    facts = {"model": _hash(resolve_model(model).config), "choice": plain(choice), "job": plain(job)}
    return _named(choice, None, running, facts=facts, gpus=gpus)


def planned_cell(choice: Choice, decision: Decision, running: Running) -> Cell:
    """Return the cell of a choice and its plan."""
    facts = {
        "model": _hash(resolve_model(decision.model).config),
        "job": plain(decision.job),
        "plan": plain(decision.plan),
        "launcher": choice.launcher,
    }
    return _named(choice, decision, running, facts=facts, gpus=decision.cluster.gpus)


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


def _named(choice: Choice, decision: Decision | None, running: Running, *, facts: dict[str, object], gpus: int) -> Cell:
    """Return the cell with its key, and a file name that is another one wherever anything else decides the result."""
    environment = running.environment
    key = _hash({**facts, "gpus": gpus, "settings": running.settings})
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
    return Cell(
        name="-".join(words),
        key=key,
        choice=choice,
        gpus=gpus,
        settings=running.settings,
        warm_up_steps=running.warm_up_steps,
        timed_steps=running.timed_steps,
        decision=decision,
    )


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]
