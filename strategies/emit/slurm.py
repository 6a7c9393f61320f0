"""A job script for Slurm: one launcher on every node, saved and queued again before its time is up.

Sources: the manual pages sbatch(1), srun(1), scontrol(1) and cgroup.conf(5) of Slurm 23.11. ``srun`` passes SIGUSR1 on
to its tasks; their children get it with ``SignalChildrenProcesses=yes`` only, which is not the default, and torchrun
(2.13) hands it to no rank.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.emit.commands import PLAN, LauncherName, Nodes, ShellVariable, launch_command
from strategies.errors import ScalingError
from strategies.host_needs import highest_moment
from strategies.plan import Framework
from strategies.units import GIB, ceil_div

CPUS_PER_RANK = 4
"""Ours: for the main thread, that of backward, NCCL's and one that makes batches. Slurm's default is one a node."""
HOST_SPARE = 1.25
"""Of the planned host memory that is asked for: buffers of the network, the launcher, files that are read."""
SIGNAL_S = 120
"""How long before its end a job is told of it, at least: for a step, and a checkpoint."""
SAVE_BYTES_PER_S = 2e8
"""Of a node that saves: slow for a parallel file system, so that the time suffices."""
MAX_SIGNAL_S = 65535
"""Slurm's own limit."""
OF_THE_PLAN = frozenset({"nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node"})
"""Options of sbatch that no other line may say, since the last one wins."""
_TIME = re.compile(r"\d+(:\d\d(:\d\d)?)?|\d+-\d+(:\d\d(:\d\d)?)?|infinite", re.IGNORECASE | re.ASCII)
_MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What a job asks of Slurm beside the nodes and GPUs of its plan, under the names of sbatch's options."""

    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    job_name: str = "scaling"
    mem: str | None = None
    """Of one node; None for what the plan needs."""
    cpus_per_task: int | None = None
    """Of one node, whose ranks are one task; None for `CPUS_PER_RANK` each."""
    signal_s: int | None = None
    """How long before its end the job is told; None for what a step and a checkpoint take, `SIGNAL_S` at least."""
    more: tuple[str, ...] = ()
    """Other options, without their dashes: ``exclusive``, ``mail-type=END``."""

    def __post_init__(self) -> None:
        problems = [
            f"--{name.replace('_', '-')} {value!r} {'has a space in it' if value else 'is empty'}"
            for name in ("partition", "account", "qos", "constraint", "job_name")
            if (value := getattr(self, name)) is not None and (not value or any(map(str.isspace, value)))
        ]
        if self.time is not None and not _TIME.fullmatch(self.time):
            problems.append(f"--time {self.time!r} must be minutes, HH:MM:SS or DAYS-HH:MM:SS")
        if self.mem is not None and not _MEMORY.fullmatch(self.mem):
            problems.append(f"--mem {self.mem!r} must be a number with K, M, G or T; 0 is all of a node")
        if self.cpus_per_task is not None and self.cpus_per_task < 1:
            problems.append(f"--cpus-per-task {self.cpus_per_task} must be above zero")
        if self.signal_s is not None and not 0 < self.signal_s <= MAX_SIGNAL_S:
            problems.append(f"--signal-s {self.signal_s} must be from 1 to {MAX_SIGNAL_S}")
        problems += [
            f"--sbatch {option!r} must be an option without dashes, like exclusive or mail-type=END"
            for option in self.more
            if not re.fullmatch(r"[a-z][\w-]*(=[^\n]+)?", option)
        ]
        problems += [
            f"--sbatch {option!r} is for the plan to say; leave it out, or plan again"
            for option in self.more
            if option.partition("=")[0] in OF_THE_PLAN
        ]
        if problems:
            raise ScalingError("; ".join(problems))


def slurm_script(
    decision: Decision,
    *,
    folder: Path,
    flags: Sequence[str],
    options: SlurmOptions,
    program: str,
    port: str | None = None,
    plan: str = PLAN,
) -> str:
    """Return the script for ``sbatch``.

    ``folder``: of the plan, by a path that holds on every node; the log goes there. ``flags``: of training.
    ``program``: of the launcher on the nodes, torchrun, or Python for a plan of TensorFlow. ``port``: on which ranks
    meet; None for one that follows from the job's number. ``plan``: its file in the folder.

    Raises:
        ScalingError: the plan's path has a line break, and what follows would be a command.
    """
    if "\n" in str(folder / plan):
        raise ScalingError(
            f"the plan {str(folder / plan)!r} has a line break in its path, which ends a line of a job script; "
            f"rename it"
        )
    directives = [f"#SBATCH --{option}" for option in _directives(decision, folder=folder, options=options)]
    what = f"{decision.plan.strategy} on {_nodes(decision.cluster)}, {folder / plan}"
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {what}; written by `scaling launch --launcher slurm`, for sbatch.",
            *directives,
            "",
            *(_meeting(port) if decision.cluster.num_nodes > 1 else ()),
            *_on_node(decision, folder=folder, plan=plan, flags=flags, program=program),
            "",
            *_JOB,
            "",
        ]
    )


def signal_s(decision: Decision) -> int:
    """Return how long before the end of its time a job is told, in seconds: a step, a checkpoint, and room."""
    step_s = decision.time.total_s if decision.time else 0.0
    host = decision.estimate.host
    save_s = host.training_checkpoint_bytes / decision.cluster.num_nodes / SAVE_BYTES_PER_S if host else 0.0
    return min(max(SIGNAL_S, 60 * ceil_div(round(2 * step_s + save_s), 60)), MAX_SIGNAL_S)


def _directives(decision: Decision, *, folder: Path, options: SlurmOptions) -> list[str]:
    cluster = decision.cluster
    ranks, moment = cluster.ranks_per_node, highest_moment(decision)
    mem = options.mem or (f"{ceil_div(round(HOST_SPARE * moment.total_bytes), GIB)}G" if moment else None)
    named = {
        "job-name": _text(options.job_name),
        "nodes": cluster.num_nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": None if cluster.gpu.is_cpu else ranks,
        "cpus-per-task": options.cpus_per_task or CPUS_PER_RANK * ranks,
        "mem": mem,
        "time": options.time,
        "partition": _text(options.partition),
        "account": _text(options.account),
        "qos": _text(options.qos),
        "constraint": _text(options.constraint),
        "output": shlex.quote(f"{str(folder).replace('%', '%%')}/slurm-%j.log"),
        "open-mode": "append",
        "signal": f"B:USR1@{options.signal_s or signal_s(decision)}",
    }
    given = (option.partition("=") for option in options.more)
    more = [f"{name}={_text(value)}" if value else name for name, _, value in given]
    return [*(f"{name}={value}" for name, value in named.items() if value is not None), "requeue", *more]


def _text(value: str | None) -> str | None:
    """Return a value in the quotes that sbatch needs to read it as one word: it splits a line as a shell does."""
    return None if value is None else shlex.quote(value)


def _nodes(cluster: Cluster) -> str:
    nodes = f"{cluster.num_nodes} node{'s' * (cluster.num_nodes > 1)}"
    return f"{nodes} x {cluster.ranks_per_node} {'CPU ranks' if cluster.gpu.is_cpu else cluster.gpu.name}"


def _meeting(port: str | None) -> list[str]:
    return [
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"MASTER_PORT={port or '$((10000 + SLURM_JOB_ID % 20000))  # another one for every job'}",
        "export MASTER_ADDR MASTER_PORT",
        "",
    ]


def _on_node(decision: Decision, *, folder: Path, plan: str, flags: Sequence[str], program: str) -> list[str]:
    is_tensorflow = decision.plan.strategy.framework is Framework.TENSORFLOW
    launcher = LauncherName.PYTHON if is_tensorflow else LauncherName.TORCHRUN
    several = decision.cluster.num_nodes > 1
    nodes = Nodes(rank=ShellVariable("SLURM_NODEID"), port=ShellVariable("MASTER_PORT") if several else None)
    command = launch_command(decision, launcher, folder=folder, flags=flags, nodes=nodes, plan=plan)
    line = replace(command, words=(program, *command.words[1:])).line
    if is_tensorflow:
        why, pass_on = "# Python waits for the program before it follows a signal.", 'kill -USR1 "$launcher"'
    else:
        why = "# torchrun passes SIGUSR1 on to no rank, and after SIGTERM gives them 30 s: they are told themselves."
        pass_on = 'pkill -USR1 -P "$launcher"'
    return [
        why,
        "on_node() {",
        f"  {line} &",
        "  launcher=$!",
        f"  trap '{pass_on}' USR1 TERM",
        *_waiting("launcher", indent="  "),
        '  wait "$launcher"',
        "}",
        "export -f on_node",
    ]


def _waiting(name: str, *, indent: str = "") -> list[str]:
    """Return lines that wait for a process although signals come meanwhile."""
    return [f'{indent}while kill -0 "${name}" 2> /dev/null; do wait "${name}"; done']


_JOB = (
    'srun --kill-on-bad-exit=1 --export=ALL --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c on_node &',
    "step=$!",
    "# Before the time is up: all ranks save and end with 0, and the job goes on from there when it is its turn again.",
    "stopped=",
    "trap 'stopped=yes; kill -USR1 \"$step\"' USR1",
    *_waiting("step"),
    'wait "$step"',
    "code=$?",
    'if [ -n "$stopped" ] && [ "$code" -eq 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
    'exit "$code"',
)
