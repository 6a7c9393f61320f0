"""Run plain PyTorch here and every variant on ranks of its own, and make the certificate of it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from scaling.errors import kind_and_line, one_line
from scaling.local_ranks import run_ranks
from scaling.parity.certificate import Certificate, limits_for, rows_of
from scaling.parity.plain import Trajectory, train_plainly
from scaling.parity.ranks import Outcome, Problem, Run, run_one_by_one
from scaling.parity.variants import LeftOut, Planned, plain_decision
from scaling.train_config import TrainConfig
from scaling.versions import versions
from strategies.decision import Decision
from strategies.errors import ScalingError
from strategies.serialize import read_json

TIMEOUT_S = 600
"""Of one collective: the ranks share this machine's cores, and one may still be reading a checkpoint."""


def certify(
    problem: Problem, planned: Sequence[Planned], left_out: Sequence[LeftOut], *, config: TrainConfig
) -> Certificate:
    """Return the certificate of ``planned``, which hold one job on one number of ranks.

    Raises:
        ScalingError: plain PyTorch cannot run the model; a variant that cannot is a finding, not an error.
    """
    decision = planned[0].decision
    plain = run_plainly(problem, decision, config=config)
    with tempfile.TemporaryDirectory() as folder:
        reference = save_reference(plain, Path(folder))
        runs = [
            Run(key=each.name, problem=problem, decision=each.decision, config=config, reference=reference)
            for each in planned
        ]
        outcomes, failed = run_all(runs)
    limits = limits_for(decision.job)
    accumulations = {each.name: each.decision.plan.gradient_accumulation_steps for each in planned}
    return Certificate(
        model=decision.model,
        ranks=decision.cluster.gpus,
        job=decision.job,
        steps=config.steps,
        first_loss=plain.losses[0],
        last_loss=plain.losses[-1],
        limits=limits,
        rows=rows_of(outcomes, plain, limits=limits, accumulations=accumulations),
        left_out=tuple(left_out),
        failed=tuple(LeftOut(name=name, reason=reason) for name, reason in failed.items()),
        versions=versions(),
    )


def run_plainly(problem: Problem, decision: Decision, *, config: TrainConfig) -> Trajectory:
    """Return the trajectory of plain fp32 PyTorch, in this process, with the whole global batch at once.

    Where samples are compared with those of their pass, in the passes that all ranks together make of it.
    """
    task = problem.task(decision)
    whole = plain_decision(decision, keeps_passes=task is not None and task.couples_samples)
    data = problem.data(whole)
    steps = (data.micro_batches(step, rank=0, world_size=1) for step in range(config.steps))
    return train_plainly(problem.model(whole), steps, config=config, job=whole.job, task=task)


def save_reference(plain: Trajectory, folder: Path) -> Path:
    """Write the parameters that plain PyTorch ended at into ``folder``; return the file."""
    path = folder / "plain.pt"
    torch.save(dict(plain.parameters), path)
    return path


def run_all(runs: Sequence[Run]) -> tuple[dict[str, Outcome], dict[str, str]]:
    """Return the outcome of every run that ended, and why the others did not, by key.

    One set of ranks takes all of them, which have the same number; where one fails, new ranks go on with the next.
    """
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        out, waiting = Path(folder), list(runs)
        while waiting:
            program, cluster = partial(run_one_by_one, tuple(waiting), out), waiting[0].decision.cluster
            try:
                run_ranks(program, world_size=cluster.gpus, timeout_s=TIMEOUT_S, on_gpus=not cluster.gpu.is_cpu)
                break
            except Exception as error:  # whatever a framework raises: it is this run's result
                broken = next(run for run in waiting if not _outcome_file(out, run).exists())
                failed[broken.key] = one_line(error) if isinstance(error, ScalingError) else kind_and_line(error)
                waiting = waiting[waiting.index(broken) + 1 :]
        ended = [run for run in runs if _outcome_file(out, run).exists()]
        return {run.key: read_json(Outcome, _outcome_file(out, run)) for run in ended}, failed


def _outcome_file(folder: Path, run: Run) -> Path:
    return folder / f"{run.key}.json"
