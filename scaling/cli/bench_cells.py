"""The cells that the flags of ``scaling bench`` describe."""

from __future__ import annotations

from typing import Any

from scaling.bench.axes import Axes, numbers_of, strategies_here, words_of
from scaling.bench.cells import Running
from scaling.bench.environment import environment_of
from scaling.bench.launch import OWN_SETTINGS
from scaling.bench.matrix import Planned, cells_of_plans, planned_cells
from scaling.cli import options
from scaling.levels import Question
from scaling.plan_file import read_plan
from scaling.train_config import resolve
from strategies.cluster import CPU_NAME, Cluster
from strategies.detect import AUTO, build_cluster
from strategies.emit.commands import LauncherName
from strategies.errors import PlanError
from strategies.job import Job
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName

CPU_RANKS = 2


def planned_from_flags(flags: dict[str, Any]) -> tuple[list[Planned], Running]:
    """Return the cells that the flags describe, and how they are run."""
    model, plans, too_large = flags["model"], flags["plan"] or [], flags["run_too_large"]
    if (model is None) == (not plans):
        raise PlanError("give a model, or --plan FILE in its place")
    if model is None:
        decisions = [(str(path), read_plan(path.expanduser())) for path in plans]
        running = _running(flags, decisions[0][1].cluster)
        launchers = words_of(LauncherName, flags["launcher"], flag="--launcher")
        return list(cells_of_plans(decisions, launchers, running, runs_too_large=too_large)), running
    question, axes = _question(flags), _axes(flags)
    running = _running(flags, question.cluster)
    cells = planned_cells(axes, question, running, level=flags["level"], runs_too_large=too_large)
    return list(cells), running


def _question(flags: dict[str, Any]) -> Question:
    """Return the model and the devices of this machine; sequence and batch are each cell's."""
    gpu, gpus = flags["gpu"], flags["gpus"]
    if gpu not in (AUTO, CPU_NAME):
        raise PlanError(f"--gpu {gpu}: plans are run on this machine; give auto or cpu")
    found = build_cluster(gpu=gpu, gpus=gpus, gpus_per_node=None, gpu_memory_gib=None, host_memory_gib=None)
    if found.gpu.is_cpu:
        gpu, gpus = CPU_NAME, gpus or CPU_RANKS  # and the warning that there is no other is told once
    gpus = gpus or found.gpus
    job = options.picked(Job, {**flags, "seq_len": 2, "global_batch_size": gpus})
    return options.question_from_flags(
        flags["model"], job=job, gpus=gpus, gpu=gpu, gpus_per_node=gpus, gpu_memory_gib=flags["gpu_memory_gib"]
    )


def _axes(flags: dict[str, Any]) -> Axes:
    def words(kind: Any, name: str) -> Any:
        return words_of(kind, flags[name], flag=f"--{name.replace('_', '-')}")

    def numbers(name: str) -> tuple[int, ...]:
        return numbers_of(flags[name], flag=f"--{name.replace('_', '-')}")

    return Axes(
        strategies=words(StrategyName, "strategy") if flags["strategy"] else strategies_here(),
        activation_checkpointing=words(ActivationCheckpointing, "activation_checkpointing"),
        micro_batch_sizes=numbers("micro_batch_size"),
        seq_lens=numbers("seq_len"),
        gradient_accumulation_steps=numbers("gradient_accumulation_steps"),
        offload_optimizer=words(OffloadDevice, "offload_optimizer"),
        offload_param=words(OffloadDevice, "offload_param"),
        launchers=words(LauncherName, "launcher"),
    )


def _running(flags: dict[str, Any], cluster: Cluster) -> Running:
    """Return how cells are run; settings of training that it would refuse are refused here, before any run."""
    settings = tuple(flags["set_"] or ())
    steps = flags["warm_up"] + flags["steps"]
    resolve(flags={"plan": "-", "out": flags["out"], "steps": steps}, assignments=settings, file=None)
    names = [setting.partition("=")[0].strip().replace("-", "_") for setting in settings]
    if own := [name for name in names if name in OWN_SETTINGS]:
        raise PlanError(f"--set {own[0]}: a bench sets it itself; leave it out (--steps and --out are flags of it)")
    return Running(
        settings=settings,
        warm_up_steps=flags["warm_up"],
        timed_steps=flags["steps"],
        environment=environment_of(cluster),
    )
