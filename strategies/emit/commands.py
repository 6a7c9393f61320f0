"""The exact command lines that start training under a plan."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import final

from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.plan import Framework

TRAIN_MODULE = "scaling.train"
TENSORFLOW_MODULE = "scaling.tensorflow.train"
DEFAULT_PORT = 29500
"""Of every launcher, where nobody says otherwise (torch 2.13, accelerate 1.15, deepspeed 0.19.8)."""
HOST_FILE = "hostfile"
PLAN = "plan.json"
LOCAL = "127.0.0.1"


class LauncherName(StrEnum):
    """What starts the processes of a run."""

    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    TORCHRUN = "torchrun"
    PYTHON = "python"
    """One process, without a launcher."""


@final
class ShellVariable(str):
    """A word that the shell fills in, which knows the node that it runs on."""

    def __new__(cls, name: str) -> ShellVariable:
        return super().__new__(cls, f'"${name}"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """How the nodes of a run find each other."""

    address: str = ShellVariable("MASTER_ADDR")
    """Of the first node."""
    port: str | None = None
    """Of the first node; None for the launcher's own choice, on several nodes `DEFAULT_PORT`."""
    rank: str = ShellVariable("NODE_RANK")
    """Of the node that the line is for."""
    hostfile: str = HOST_FILE
    """What `deepspeed` reads the nodes from."""
    by_ssh: bool = True
    """Whether one `deepspeed` starts all nodes, by ssh; else it is started on each, as the others are."""
    device_ids: tuple[str, ...] = ()
    """GPUs that `deepspeed` is to take on a single node; empty for the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """One way to start training; on several nodes, to be run on each of them."""

    launcher: LauncherName
    words: tuple[str, ...]

    @property
    def line(self) -> str:
        """The words for a shell."""
        return " ".join(word if isinstance(word, ShellVariable) else shlex.quote(word) for word in self.words)


def launch_commands(decision: Decision, *, folder: Path) -> tuple[LaunchCommand, ...]:
    """Return one command per launcher that can run the plan, with the files written to ``folder``.

    The ``deepspeed`` launcher starts DDP plans as well: it only sets the process environment.
    """
    is_one_process = decision.plan.strategy.framework is Framework.TENSORFLOW  # which drives all devices
    names = [name for name in LauncherName if (name is LauncherName.PYTHON) is is_one_process]
    nodes = Nodes(hostfile=str(folder / HOST_FILE))
    flags = example_flags(folder)
    return tuple(launch_command(decision, name, folder=folder, flags=flags, nodes=nodes) for name in names)


def example_flags(folder: Path) -> tuple[str, ...]:
    """Return flags of training that need nothing but the plan's folder."""
    return ("--data", "auto", "--tokenizer", "bytes", "--steps", "100", "--out", str(folder / "run"))


def launch_command(
    decision: Decision,
    launcher: LauncherName,
    *,
    folder: Path,
    flags: Sequence[str],
    nodes: Nodes,
    plan: str = PLAN,
) -> LaunchCommand:
    """Return the command that starts training as ``flags`` say; ``folder`` holds the plan's files, ``plan`` is one."""
    module = TENSORFLOW_MODULE if decision.plan.strategy.framework is Framework.TENSORFLOW else TRAIN_MODULE
    train = (module, "--plan", str(folder / plan), *flags)
    return LaunchCommand(launcher=launcher, words=(*_head(launcher, decision.cluster, folder, nodes), *train))


def hostfile_template(cluster: Cluster) -> str:
    """Return a host file for ``deepspeed``, to be filled in with the names of the nodes."""
    hosts = [f"node{number} slots={cluster.ranks_per_node}" for number in range(1, cluster.num_nodes + 1)]
    text = "# One node a line, the first has rank 0. Put names that ssh reaches without a password in place of these."
    return "\n".join([text, *hosts]) + "\n"


def _head(launcher: LauncherName, cluster: Cluster, folder: Path, nodes: Nodes) -> list[str]:
    match launcher:
        case LauncherName.ACCELERATE:
            config = str(folder / "accelerate.yaml")
            return ["accelerate", "launch", "--config_file", config, *_accelerate(cluster, nodes), "-m"]
        case LauncherName.DEEPSPEED:
            return ["deepspeed", *_deepspeed(cluster, nodes), "--module"]
        case LauncherName.TORCHRUN:
            return ["torchrun", "--nproc_per_node", str(cluster.ranks_per_node), *_torchrun(cluster, nodes), "-m"]
        case LauncherName.PYTHON:
            return ["python", "-m"]


def _accelerate(cluster: Cluster, nodes: Nodes) -> list[str]:
    if cluster.num_nodes == 1:
        return ["--main_process_port", nodes.port] if nodes.port else []
    meet = ["--main_process_ip", nodes.address, "--main_process_port", nodes.port or str(DEFAULT_PORT)]
    return ["--machine_rank", nodes.rank, *meet]


def _deepspeed(cluster: Cluster, nodes: Nodes) -> list[str]:
    port = ["--master_port", nodes.port] if nodes.port else []
    if cluster.num_nodes == 1 and nodes.by_ssh:
        if nodes.device_ids:  # with a number it takes the first ones, whatever CUDA_VISIBLE_DEVICES says
            return ["--include", f"localhost:{','.join(nodes.device_ids)}", *port]
        return ["--num_gpus", str(cluster.ranks_per_node), *port]
    hosts = [
        "--num_gpus",
        str(cluster.ranks_per_node),
        "--num_nodes",
        str(cluster.num_nodes),
        "--hostfile",
        nodes.hostfile,
    ]
    if nodes.by_ssh:
        return [*hosts, *port]
    return [*hosts, "--no_ssh", "--node_rank", nodes.rank, "--master_addr", nodes.address, *port]


def _torchrun(cluster: Cluster, nodes: Nodes) -> list[str]:
    if cluster.num_nodes == 1:
        return ["--master_addr", LOCAL, "--master_port", nodes.port] if nodes.port else ["--standalone"]
    meet = ["--master_addr", nodes.address, "--master_port", nodes.port or str(DEFAULT_PORT)]
    return ["--nnodes", str(cluster.num_nodes), "--node_rank", nodes.rank, *meet]
