"""The exact command lines that start training under a plan."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.plan import Framework

TRAIN_MODULE = "scaling.train"
TENSORFLOW_MODULE = "scaling.tensorflow.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """One way to start training; on several nodes, to be run on each of them."""

    launcher: str
    line: str


def launch_commands(decision: Decision, *, folder: Path) -> tuple[LaunchCommand, ...]:
    """Return one command per launcher that can run the plan, with the files written to ``folder``.

    The ``deepspeed`` launcher starts DDP plans as well: it only sets the process environment.
    """
    inputs = ["--plan", str(folder / "plan.json"), "--data", "auto", "--tokenizer", "bytes"]
    train = [*inputs, "--steps", "100", "--out", str(folder / "run")]
    if decision.plan.strategy.framework is Framework.TENSORFLOW:  # one process drives all devices
        return (LaunchCommand(launcher="python", line=shlex.join(["python", "-m", TENSORFLOW_MODULE, *train])),)
    cluster = decision.cluster
    return (
        LaunchCommand(launcher="accelerate", line=_accelerate(cluster, folder, train)),
        LaunchCommand(launcher="deepspeed", line=_deepspeed(cluster, train)),
        LaunchCommand(launcher="torchrun", line=_torchrun(cluster, train)),
    )


def _accelerate(cluster: Cluster, folder: Path, train: list[str]) -> str:
    head = ["accelerate", "launch", "--config_file", str(folder / "accelerate.yaml")]
    nodes = " --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port 29500"
    return _join(head, nodes if cluster.num_nodes > 1 else "", ["-m", TRAIN_MODULE, *train])


def _deepspeed(cluster: Cluster, train: list[str]) -> str:
    head = ["deepspeed", "--num_gpus", str(cluster.ranks_per_node)]
    nodes = f" --num_nodes {cluster.num_nodes} --hostfile hostfile" if cluster.num_nodes > 1 else ""
    return _join(head, nodes, ["--module", TRAIN_MODULE, *train])


def _torchrun(cluster: Cluster, train: list[str]) -> str:
    head = ["torchrun", "--nproc_per_node", str(cluster.ranks_per_node)]
    nodes = f" --nnodes {cluster.num_nodes} --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port 29500"
    return _join(head, nodes if cluster.num_nodes > 1 else " --standalone", ["-m", TRAIN_MODULE, *train])


def _join(head: list[str], options: str, tail: list[str]) -> str:
    return f"{shlex.join(head)}{options} {shlex.join(tail)}"
