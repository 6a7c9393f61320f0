"""Which launcher starts a plan where nobody says, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scaling.errors import LaunchError
from strategies.decision import Decision
from strategies.plan import Framework


class LaunchBy(StrEnum):
    """What starts a run."""

    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    TORCHRUN = "torchrun"
    SLURM = "slurm"
    """A script for sbatch, with one torchrun on every node."""
    PYTHON = "python"
    """One process without a launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A launcher, and why it is the one."""

    launcher: LaunchBy
    why: str


def choose(decision: Decision, *, asked: LaunchBy | None, has_hosts: bool, names_node: bool) -> Choice:
    """Return what starts the plan: what is asked for, if it can, else what suits.

    ``has_hosts``: whether a host file is given. ``names_node``: whether the user starts each node by hand, and says
    which one this is.

    Raises:
        LaunchError: what is asked for cannot start such a plan.
    """
    if asked is not None:
        _require_possible(decision, asked, has_hosts=has_hosts)
        return Choice(launcher=asked, why="as asked")
    if decision.plan.strategy.framework is Framework.TENSORFLOW:
        return Choice(launcher=LaunchBy.PYTHON, why="TensorFlow drives all devices from one process")
    if decision.cluster.num_nodes == 1 and not has_hosts:
        return Choice(launcher=LaunchBy.TORCHRUN, why="one machine: it finds a free port, and comes with torch")
    if has_hosts and not names_node:
        return Choice(launcher=LaunchBy.DEEPSPEED, why="a host file: from one machine it starts all nodes, by ssh")
    return Choice(launcher=LaunchBy.TORCHRUN, why=f"to be started on each of {decision.cluster.num_nodes} nodes")


def _require_possible(decision: Decision, asked: LaunchBy, *, has_hosts: bool) -> None:
    is_tensorflow = decision.plan.strategy.framework is Framework.TENSORFLOW
    if is_tensorflow and asked not in (LaunchBy.PYTHON, LaunchBy.SLURM):
        raise LaunchError(
            f"--launcher {asked} starts a process for every GPU, but the plan is for TensorFlow, which drives all "
            f"{decision.cluster.gpus} from one; leave --launcher out"
        )
    if asked is LaunchBy.PYTHON and not is_tensorflow and decision.cluster.gpus > 1:
        raise LaunchError(
            f"--launcher python starts one process, but the plan is for gpus={decision.cluster.gpus}; leave it out, or "
            f"plan again with --gpus 1"
        )
    if has_hosts and asked in (LaunchBy.SLURM, LaunchBy.PYTHON):
        raise LaunchError(f"--launcher {asked} reads no host file; leave --hostfile out")
