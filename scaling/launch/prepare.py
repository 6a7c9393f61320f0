"""From flags to what is started: every mistake is found here, before there is any process."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from scaling.errors import LaunchError
from scaling.launch.asked import Asked
from scaling.launch.choice import Choice, LaunchBy, choose
from scaling.launch.hostfile import Host, read_hosts
from scaling.launch.meeting import nodes_of, starts_all_nodes
from scaling.launch.world import (
    check_accelerate_file,
    check_allocation,
    check_asked,
    check_not_inside,
    check_torchrun_variable,
)
from scaling.plan_file import read_plan
from scaling.train_arguments import PROGRAM, parse_arguments
from scaling.train_config import AUTO, NONE, TrainConfig
from strategies.decision import Decision
from strategies.emit.commands import TENSORFLOW_MODULE, LaunchCommand, LauncherName, example_flags, launch_command
from strategies.emit.slurm import SlurmOptions, slurm_script
from strategies.plan import Framework

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A run that can be started."""

    decision: Decision
    config: TrainConfig
    choice: Choice
    commands: tuple[LaunchCommand, ...] = ()
    """One; or, where nobody says which node this is, one for each host of a host file."""
    hosts: tuple[Host, ...] = ()
    script: str | None = None
    """For sbatch, in place of commands."""


def prepare(asked: Asked, *, starts: bool, environ: Mapping[str, str]) -> Launch:
    """Return what the flags ask for. ``starts``: whether it is to be started here, not only shown.

    Raises:
        ScalingError: something is wrong; nothing has been started.
    """
    decision = read_plan(asked.plan)
    cluster = decision.cluster
    check_asked(cluster, asked.shape)
    if starts:
        check_not_inside(environ)
    hosts = read_hosts(asked.hostfile, cluster=cluster) if asked.hostfile else ()
    choice = choose(decision, asked=asked.launcher, has_hosts=bool(hosts), names_node=asked.node_rank is not None)
    flags, config = _training(asked, decision, goes_on=choice.launcher is LaunchBy.SLURM)
    launch = Launch(decision=decision, config=config, choice=choice, hosts=hosts)
    _require_used(asked, decision, choice.launcher)
    if choice.launcher is LaunchBy.SLURM:
        return replace(launch, script=_script(asked, decision, flags))
    launcher = LauncherName(choice.launcher.value)
    if launcher is LauncherName.ACCELERATE:
        check_accelerate_file(decision, asked.folder)
    if starts:
        check_allocation(cluster, environ)
        if launcher is LauncherName.TORCHRUN:
            check_torchrun_variable(cluster, environ)
        if starts_all_nodes(asked, cluster, launcher):
            _require_pdsh()
    nodes = nodes_of(asked, cluster, launcher, hosts=hosts, starts=starts, environ=environ)
    commands = [
        launch_command(decision, launcher, folder=asked.folder, flags=flags, nodes=each, plan=asked.plan.name)
        for each in nodes
    ]
    return replace(launch, commands=tuple(commands))


def runnable(command: LaunchCommand) -> LaunchCommand:
    """Return the command with the path of its program, which is this Python's own where it has one.

    Raises:
        LaunchError: it is not installed.
    """
    return replace(command, words=(program_path(command.words[0]), *command.words[1:]))


def program_path(name: str) -> str:
    """Return where a program is: beside this Python, or else where the shell finds it.

    Raises:
        LaunchError: it is not installed.
    """
    if name == "python":
        return sys.executable
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise LaunchError(f"{name} is not installed for {sys.executable}; install it, or give another --launcher")
    return found


def _training(asked: Asked, decision: Decision, *, goes_on: bool) -> tuple[tuple[str, ...], TrainConfig]:
    """Return the flags of training, and what they add up to. ``goes_on``: whether they must follow an earlier run.

    Raises:
        ConfigError: they are wrong.
        LaunchError: they name another plan.
    """
    is_tensorflow = decision.plan.strategy.framework is Framework.TENSORFLOW
    flags = asked.flags or example_flags(asked.folder)
    if not asked.flags:
        logger.warning("no flags of training after --, so those of an example are taken: %s", " ".join(flags))
    arguments = ["--plan", str(asked.plan), *flags]
    config = parse_arguments(arguments, program=TENSORFLOW_MODULE if is_tensorflow else PROGRAM).config
    if config.plan != asked.plan:
        raise LaunchError(f"--plan is {asked.plan}, and {config.plan} after --; give it once, before --")
    if goes_on and config.resume == NONE:
        return (*flags, "--resume", AUTO), replace(config, resume=AUTO)
    return flags, config


def _require_used(asked: Asked, decision: Decision, launcher: LaunchBy) -> None:
    """Refuse flags that would change nothing.

    Raises:
        LaunchError: names them.
    """
    unused = []
    if launcher is not LaunchBy.SLURM and (options := _given(asked.slurm)):
        unused = [f"{', '.join(options)}, but {launcher} starts it, not --launcher slurm"]
    by_node = {"--node-rank": asked.node_rank, "--master-addr": asked.master_addr}
    given = [name for name, value in by_node.items() if value is not None]
    if given and launcher is LaunchBy.SLURM:
        unused.append(f"{', '.join(given)}, but Slurm names the nodes")
    elif given and decision.cluster.num_nodes == 1:
        unused.append(f"{', '.join(given)}, but the plan is for one node")
    if unused:
        raise LaunchError(f"these flags do nothing: {'; '.join(unused)}; leave them out")


def _given(options: SlurmOptions) -> list[str]:
    """Return the flags by which a job is not the default one."""
    default = SlurmOptions()
    names = [each.name for each in fields(options) if getattr(options, each.name) != getattr(default, each.name)]
    return [f"--{'sbatch' if name == 'more' else name.replace('_', '-')}" for name in names]


def _script(asked: Asked, decision: Decision, flags: tuple[str, ...]) -> str:
    is_tensorflow = decision.plan.strategy.framework is Framework.TENSORFLOW
    return slurm_script(
        decision,
        folder=asked.folder.absolute(),
        flags=flags,
        options=asked.slurm,
        program=program_path("python" if is_tensorflow else "torchrun"),
        port=None if asked.master_port is None else str(asked.master_port),
        plan=asked.plan.name,
    )


def _require_pdsh() -> None:
    if shutil.which("pdsh") is None:
        raise LaunchError(
            "deepspeed starts other nodes with pdsh, which is not installed here; install it, or run `scaling launch` "
            "on every node with --node-rank"
        )
