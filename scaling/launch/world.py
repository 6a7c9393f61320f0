"""Whether as many processes would be started as the plan has GPUs: asked before there is any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.errors import LaunchError, one_line
from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.emit.deepspeed import STAGES
from strategies.emit.files import ACCELERATE_FILE

INSIDE = "LOCAL_RANK"
"""Set by every launcher for the processes that it starts, and by no scheduler."""
TORCHRUN_NODES = "PET_NNODES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Nodes, and processes on each; None where nobody says."""

    nodes: int | None = None
    per_node: int | None = None


def check_asked(cluster: Cluster, asked: Shape) -> None:
    """Refuse nodes or processes that are not those of the plan.

    Raises:
        LaunchError: names both numbers.
    """
    nodes = cluster.num_nodes if asked.nodes is None else asked.nodes
    per_node = cluster.ranks_per_node if asked.per_node is None else asked.per_node
    if (nodes, per_node) == (cluster.num_nodes, cluster.ranks_per_node):
        return
    raise LaunchError(
        f"{_several(nodes, 'node')} x {per_node} processes = {nodes * per_node} were asked for, but the plan is for "
        f"{_planned(cluster)}; leave --nodes and --gpus-per-node out, or plan again with --gpus {nodes * per_node} "
        f"--gpus-per-node {per_node}"
    )


def check_allocation(cluster: Cluster, environ: Mapping[str, str]) -> None:
    """Refuse to start in a job of Slurm that has fewer nodes or GPUs than the plan.

    Raises:
        LaunchError: names both numbers.
    """
    nodes, per_node = _number(environ, "SLURM_JOB_NUM_NODES"), _number(environ, "SLURM_GPUS_ON_NODE")
    if "SLURM_JOB_ID" not in environ:
        return
    too_few_gpus = per_node is not None and not cluster.gpu.is_cpu and per_node < cluster.ranks_per_node
    if (nodes is None or nodes >= cluster.num_nodes) and not too_few_gpus:
        return
    known = [None if nodes is None else _several(nodes, "node"), None if per_node is None else f"{per_node} GPUs"]
    has = " of ".join(filter(None, known))
    raise LaunchError(
        f"the job {environ['SLURM_JOB_ID']} of Slurm has {has}, but the plan is for {_planned(cluster)}; ask for "
        f"--nodes={cluster.num_nodes} --gpus-per-node={cluster.ranks_per_node}, or plan again for what the job has"
    )


def check_devices(cluster: Cluster, num_devices: int) -> None:
    """Refuse to start on a machine with fewer GPUs than ranks.

    Raises:
        LaunchError: names both numbers.
    """
    if not cluster.gpu.is_cpu and num_devices < cluster.ranks_per_node:
        fewer = f"--gpus {num_devices} or " if num_devices else ""
        raise LaunchError(
            f"the plan is for {cluster.ranks_per_node} of gpu={cluster.gpu.name} on this machine, but it has "
            f"{num_devices} CUDA devices; plan again with {fewer}--gpu cpu, or ask `scaling doctor` for the others"
        )


def check_not_inside(environ: Mapping[str, str]) -> None:
    """Refuse to start processes from one that a launcher has started.

    Raises:
        LaunchError: it is set what launchers set.
    """
    if INSIDE in environ:
        raise LaunchError(
            f"{INSIDE}={environ[INSIDE]} is set: a launcher has started this process already, and each of its ranks "
            f"would start all ranks; run `scaling launch` by itself, or unset {INSIDE}"
        )


def check_torchrun_variable(cluster: Cluster, environ: Mapping[str, str]) -> None:
    """Refuse what torchrun would take for its number of nodes, since a line for one machine does not say it.

    Source: torch 2.13, distributed/argparse_util.py. Kubeflow sets it in its pods.

    Raises:
        LaunchError: names the variable.
    """
    nodes = environ.get(TORCHRUN_NODES, "1")
    if cluster.num_nodes == 1 and nodes not in ("1", "1:1"):
        raise LaunchError(
            f"{TORCHRUN_NODES}={nodes} is set: torchrun would wait for other nodes, but the plan is for "
            f"{_planned(cluster)} on one; unset {TORCHRUN_NODES}, or plan again with --gpus-per-node"
        )


def check_accelerate_file(decision: Decision, folder: Path) -> None:
    """Refuse an accelerate.yaml that starts other processes than the plan's, or whose DeepSpeed JSON is not there.

    Raises:
        LaunchError: names the file and what is wrong in it.
    """
    path = folder / ACCELERATE_FILE
    content = _yaml(path)
    planned = {"num_processes": decision.cluster.gpus, "num_machines": decision.cluster.num_nodes}
    for name, number in planned.items():
        if content.get(name) != number:
            raise LaunchError(
                f"{path} has {name}: {content.get(name)}, but the plan is for {_planned(decision.cluster)}; write it "
                f"again with `scaling plan --out {folder} --overwrite`"
            )
    if decision.plan.strategy in STAGES:
        section = content.get("deepspeed_config")
        named = section.get("deepspeed_config_file") if isinstance(section, dict) else None
        if not isinstance(named, str) or not Path(named).is_file():
            raise LaunchError(
                f"{path} names the DeepSpeed configuration {named}, which is not there; start where "
                f"`scaling plan --out` was run, or use --launcher torchrun"
            )


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError) as error:
        raise LaunchError(
            f"cannot read {path}, which accelerate is started with: {one_line(error)}; `scaling plan --out` writes it, "
            f"or use --launcher torchrun"
        ) from error
    return content if isinstance(content, dict) else {}


def _planned(cluster: Cluster) -> str:
    if cluster.num_nodes == 1:
        return f"gpus={cluster.gpus}"
    return f"gpus={cluster.gpus}, {cluster.ranks_per_node} on each of {cluster.num_nodes} nodes"


def _several(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None
