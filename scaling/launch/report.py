"""A launch to be read: lines for a shell, or the script for Slurm."""

from __future__ import annotations

import json

from scaling.launch.prepare import Launch


def text(launch: Launch) -> str:
    """Return what a user would type; with several nodes, a line for each."""
    if launch.script is not None:
        return launch.script
    lines = [command.line for command in launch.commands]
    if len(lines) > 1:
        lines = [part for host, line in zip(launch.hosts, lines, strict=True) for part in (f"# {host.name}", line)]
    return "\n".join(lines) + "\n"


def as_json(launch: Launch) -> str:
    """Return the same as JSON."""
    names: list[str | None] = [host.name for host in launch.hosts] if len(launch.commands) > 1 else [None]
    return json.dumps(
        {
            "launcher": launch.choice.launcher,
            "why": launch.choice.why,
            "gpus": launch.decision.cluster.gpus,
            "nodes": launch.decision.cluster.num_nodes,
            "commands": [
                {"host": name, "words": command.words, "line": command.line}
                for name, command in zip(names, launch.commands, strict=bool(launch.commands))
            ],
            "script": launch.script,
        },
        indent=2,
    )
