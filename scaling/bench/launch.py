"""The command line of a run: what `scaling plan` prints for the launcher, with the bench's own flags of training."""

from __future__ import annotations

from pathlib import Path

from scaling.bench.result import Cell
from scaling.launch.prepare import runnable
from scaling.ports import free_port
from strategies.decision import Decision
from strategies.emit.commands import LauncherName, Nodes, launch_command

OWN_SETTINGS = ("plan", "out", "steps", "measure_steps", "dry_run")
"""Of training: what a bench decides itself."""
METERED_STEPS = 3
"""Of CPU ranks; metering slows them, so they are part of the warm-up."""


def command_of(cell: Cell, decision: Decision, *, plan: Path, out: Path) -> tuple[str, ...]:
    """Return the words that start ``scaling.train`` on the plan in the folder ``plan``.

    Raises:
        LaunchError: the launcher is not installed.
    """
    launcher = cell.choice.launcher
    # Two runs on 29500, which most launchers take, would end each other; torchrun alone chooses a free one.
    port = None if launcher is LauncherName.TORCHRUN else str(free_port())
    command = launch_command(decision, launcher, folder=plan, flags=_training(cell, out=out), nodes=Nodes(port=port))
    return runnable(command).words


def _training(cell: Cell, *, out: Path) -> list[str]:
    flags = {
        "--out": out,
        "--steps": cell.warm_up_steps + cell.timed_steps,
        "--measure-steps": METERED_STEPS,
        "--dry-run": "never",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    return [*words, *(word for setting in cell.settings for word in ("--set", setting))]
