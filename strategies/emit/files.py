"""Write a decision to a folder: plan.json, deepspeed.json, accelerate.yaml, launch.txt, and a host file to fill in."""

from __future__ import annotations

import json
import os
from pathlib import Path

from strategies.decision import Decision
from strategies.emit.accelerate import accelerate_yaml
from strategies.emit.commands import HOST_FILE, PLAN, hostfile_template, launch_commands
from strategies.emit.deepspeed import deepspeed_config
from strategies.errors import ScalingError
from strategies.plan import Framework
from strategies.serialize import to_json

PLAN_FILE = PLAN
DEEPSPEED_FILE = "deepspeed.json"
ACCELERATE_FILE = "accelerate.yaml"
COMMANDS_FILE = "launch.txt"


def plan_files(decision: Decision, *, folder: Path) -> dict[str, str]:
    """Return the text of every file of a plan, by file name; ``plan.json`` comes last."""
    files = {}
    if decision.plan.strategy.framework is Framework.PYTORCH:
        files[ACCELERATE_FILE] = accelerate_yaml(decision, deepspeed_json=folder / DEEPSPEED_FILE)
    if (config := deepspeed_config(decision)) is not None:
        files[DEEPSPEED_FILE] = json.dumps(config, indent=2) + "\n"
    if decision.cluster.num_nodes > 1:
        files[HOST_FILE] = hostfile_template(decision.cluster)
    commands = launch_commands(decision, folder=folder)
    files[COMMANDS_FILE] = "\n".join(f"# {command.launcher}\n{command.line}" for command in commands) + "\n"
    files[PLAN_FILE] = to_json(decision)
    return files


def write_plan(decision: Decision, *, folder: Path, overwrite: bool = False) -> list[Path]:
    """Write the files of ``decision`` and return their paths; all of them or none.

    Raises:
        ScalingError: the folder holds files of another plan and ``overwrite`` is off, or it cannot be written.
    """
    files = plan_files(decision, folder=folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stale = _differing(files, folder)
        if stale and not overwrite:
            raise ScalingError(
                f"{folder} already holds another plan ({', '.join(stale)} would change); "
                f"give another --out folder, or --overwrite"
            )
        for name in {DEEPSPEED_FILE, ACCELERATE_FILE} - files.keys():
            (folder / name).unlink(missing_ok=True)
        if (folder / HOST_FILE).exists():  # filled in by its owner
            files.pop(HOST_FILE, None)
        return _write_whole({folder / name: text for name, text in files.items()})
    except (OSError, UnicodeError, RecursionError) as error:
        raise ScalingError(f"cannot write the plan to {folder}: {error}; give another --out folder") from error


def _differing(files: dict[str, str], folder: Path) -> list[str]:
    """Return the names of plan files in ``folder`` that would be changed or are no part of this plan."""
    names = (PLAN_FILE, DEEPSPEED_FILE, ACCELERATE_FILE, COMMANDS_FILE)
    present = [name for name in names if (folder / name).exists()]
    return [
        name for name in present if (folder / name).read_text(encoding="utf-8", errors="replace") != files.get(name)
    ]


def _write_whole(files: dict[Path, str]) -> list[Path]:
    """Write every file beside its place first, so that none changes when one cannot be written."""
    partial = {path: path.with_name(f".{path.name}.{os.getpid()}.partial") for path in files}
    try:
        for path, text in files.items():
            partial[path].write_text(text, encoding="utf-8")
        for path, written in partial.items():
            written.replace(path)
    finally:
        for leftover in partial.values():
            leftover.unlink(missing_ok=True)
    return list(files)
