"""Both frameworks run the same steps, one after the other, each in fresh processes."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scaling.disk import writing
from scaling.errors import ConfigError
from scaling.frameworks.prepare import plans_of_both, write_first_weights
from scaling.frameworks.result import FrameworkComparison, FrameworkRun
from scaling.run_folder import METRICS_FILE
from scaling.train_config import resolve
from scaling.versions import versions
from scaling.watched_process import LAUNCHER, Watched, python, run_watched
from strategies.decision import Decision
from strategies.emit.commands import TENSORFLOW_MODULE, TRAIN_MODULE
from strategies.emit.files import PLAN_FILE, write_plan
from strategies.plan import Framework

WARM_UP_STEPS = 3
METERED_STEPS = 2
"""Optimizer states appear in the first: the second is the steady state."""


def compare_frameworks(
    decision: Decision, *, steps: int, settings: Sequence[str], out: Path, seed: int = 0
) -> FrameworkComparison:
    """Return what both frameworks did with ``steps`` steps of the plan; their run folders are left in ``out``.

    ``settings``: of training, as name=value; both runs have them.

    Raises:
        ScalingError: ``out`` is not empty, a framework is missing or cannot run the plan, or a run fails.
    """
    if steps <= WARM_UP_STEPS:
        raise ConfigError(f"steps={steps} must be more than the {WARM_UP_STEPS} that warm up; give at least 8")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out} is not an empty folder; give another")
    resolve(flags={"plan": out / PLAN_FILE, "out": out, "steps": steps}, assignments=settings, file=None)
    plans = plans_of_both(decision)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    model = out / "model"
    write_first_weights(decision, seed=seed, folder=model)
    runs = {
        framework: _run(replace(plan, model=str(model.resolve())), steps=steps, settings=settings, folder=out)
        for framework, plan in plans.items()
    }
    torch_run, tensorflow_run = runs[Framework.PYTORCH], runs[Framework.TENSORFLOW]
    pairs = zip(torch_run.losses, tensorflow_run.losses, strict=True)
    return FrameworkComparison(
        model=decision.model,
        num_params=decision.num_params,
        cluster=decision.cluster,
        steps=steps,
        warm_up_steps=WARM_UP_STEPS,
        largest_loss_difference=max(abs(other - loss) / abs(loss) for loss, other in pairs),
        runs=(torch_run, tensorflow_run),
        environment=_environment(),
    )


def _run(decision: Decision, *, steps: int, settings: Sequence[str], folder: Path) -> FrameworkRun:
    framework = decision.plan.strategy.framework
    plan, out = folder / f"{framework}-plan", folder / framework.value
    write_plan(decision, folder=plan)
    command = [
        *_launcher(decision),
        *("--plan", str(plan / PLAN_FILE), "--init", "pretrained", "--dry-run", "never"),
        *(word for setting in settings for word in ("--set", setting)),
    ]
    # Metering follows every operator of PyTorch on a CPU, which slows it.
    timed = [*command, "--out", str(out), "--steps", str(steps), "--measure-steps", "0"]
    watched = run_watched(timed, out=out, log=folder / f"{framework}.log")
    lines = _steps(out)
    if framework is Framework.PYTORCH and decision.cluster.gpu.is_cpu:
        metered = folder / f"{framework}-metered"
        number = str(METERED_STEPS)
        short = ["--out", str(metered), "--steps", number, "--measure-steps", number, "--warmup-steps", "0"]
        run_watched([*command, *short], out=metered, log=folder / f"{framework}-metered.log")
        peak = _steps(metered)[-1]["peak_allocated_bytes"]
    else:
        peak = lines[-1]["peak_allocated_bytes"]
    return _told(decision, watched, command=timed, steps=lines, peak_device_bytes=peak)


def _launcher(decision: Decision) -> list[str]:
    if decision.plan.strategy.framework is Framework.TENSORFLOW:
        return [python(), "-m", TENSORFLOW_MODULE]
    if decision.cluster.gpus == 1:
        return [python(), "-m", TRAIN_MODULE]
    torchrun = [python(), "-m", LAUNCHER, "--standalone"]
    return [*torchrun, "--nproc_per_node", str(decision.cluster.gpus), "-m", TRAIN_MODULE]


def _steps(out: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl that are about optimizer steps."""
    lines = [json.loads(line) for line in (out / METRICS_FILE).read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def _told(
    decision: Decision,
    watched: Watched,
    *,
    command: Sequence[str],
    steps: Sequence[Mapping[str, Any]],
    peak_device_bytes: int | None,
) -> FrameworkRun:
    times = tuple(step["step_time_s"] for step in steps)
    typical = statistics.median(times[WARM_UP_STEPS:])
    assert watched.first_step_s is not None, "a run that ended well has done a step"
    return FrameworkRun(
        framework=decision.plan.strategy.framework,
        plan=decision.plan,
        job=decision.job,
        command=shlex.join(["python", *command[1:]]),
        losses=tuple(step["loss"] for step in steps),
        grad_norms=tuple(step["grad_norm"] for step in steps),
        step_times_s=times,
        tokens_per_s=decision.job.tokens_per_step / typical,
        start_up_s=watched.first_step_s - watched.start_s - times[0],
        compile_s=max(0.0, times[0] - typical),
        whole_s=watched.end_s - watched.start_s,
        predicted_peak_bytes=decision.estimate.peak_allocated_bytes,
        peak_device_bytes=peak_device_bytes,
        peak_resident_bytes=sum(watched.peaks.values()),
        num_processes=len(watched.peaks),
    )


def _environment() -> dict[str, str]:
    """Return versions and the machine."""
    return {
        **versions(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "load_at_the_end": ", ".join(f"{each:.1f}" for each in os.getloadavg()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }
