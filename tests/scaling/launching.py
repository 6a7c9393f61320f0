"""Start processes as a user would, with the launchers of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from scaling import cli

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).resolve().parents[2]
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc_per_node")


def run_cli(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> int:
    """Return the exit code of ``scaling words`` run in this process."""
    monkeypatch.setattr(sys, "argv", ["scaling", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def start(
    command: Sequence[str | Path], *, environ: Mapping[str, str] | None = None, timeout_s: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a command from the repository's root, one thread a process, and return what it printed and its exit code."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run(
        [str(part) for part in command],
        cwd=REPOSITORY,
        env={**clean, "OMP_NUM_THREADS": "1", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def succeed(command: Sequence[str | Path], *, environ: Mapping[str, str] | None = None, timeout_s: float = 600) -> str:
    """Run a command that must end well; return its stdout."""
    done = start(command, environ=environ, timeout_s=timeout_s)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout
