"""The command line of a run: what `scaling plan` prints for the launcher, with the bench's own flags of training."""

from __future__ import annotations

import shlex
import shutil
import socket
import sys
from pathlib import Path

from scaling.bench.result import Cell, Launcher
from scaling.errors import LaunchError
from strategies.decision import Decision
from strategies.emit.commands import TRAIN_MODULE, launch_commands
from strategies.emit.files import PLAN_FILE

METERED_STEPS = 3
"""Of CPU ranks; metering slows them, so they are part of the warm-up."""


def command_of(cell: Cell, decision: Decision, *, plan: Path, out: Path) -> list[str]:
    """Return the words that start ``scaling.train`` on the plan in the folder ``plan``.

    Raises:
        LaunchError: the launcher is not installed.
    """
    launcher = cell.choice.launcher
    line = next(each.line for each in launch_commands(decision, folder=plan) if str(each.launcher) == launcher.value)
    words = shlex.split(line)
    head = words[1 : words.index(TRAIN_MODULE) + 1]
    return [installed(launcher), *_options(launcher, head), *_training(cell, plan=plan, out=out)]


def installed(launcher: Launcher) -> str:
    """Return the launcher's program, that of this interpreter's environment first.

    Raises:
        LaunchError: there is none.
    """
    beside = Path(sys.executable).parent / launcher
    program = str(beside) if beside.is_file() else shutil.which(launcher)
    if program is None:
        raise LaunchError(f"launcher {launcher} is not installed; pip install it, or leave it out of --launcher")
    return program


def _options(launcher: Launcher, head: list[str]) -> list[str]:
    """Return the launcher's own flags with a free port: two that take 29500, their default, would end each other."""
    match launcher:
        case Launcher.TORCHRUN:
            return head  # --standalone chooses one
        case Launcher.DEEPSPEED:
            return ["--master_port", str(_free_port()), "--log_level", "warning", *head]
        case Launcher.ACCELERATE:
            return [head[0], "--main_process_port", str(_free_port()), *head[1:]]


def _training(cell: Cell, *, plan: Path, out: Path) -> list[str]:
    flags = {
        "--plan": plan / PLAN_FILE,
        "--out": out,
        "--steps": cell.warm_up_steps + cell.timed_steps,
        "--measure-steps": METERED_STEPS,
        "--dry-run": "never",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    return [*words, *(word for setting in cell.settings for word in ("--set", setting))]


def _free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
