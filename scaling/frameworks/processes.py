"""A training command run as a user would, with what it holds and when its first step is done."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scaling.errors import TrainingError
from scaling.run_folder import METRICS_FILE
from strategies.emit.commands import TENSORFLOW_MODULE, TRAIN_MODULE

LAUNCHER = "torch.distributed.run"
TRAINERS = frozenset({TRAIN_MODULE, TENSORFLOW_MODULE})
LOOK_EVERY_S = 0.02
LAST_WORDS = 2000
"""Characters of what a run that failed printed last."""
KIB = 1024


@dataclass(slots=True, kw_only=True)
class Watched:
    """What was seen of a run. Filled while it goes on."""

    start_s: float
    first_step_s: float | None = None
    """When the line of the first step was there."""
    end_s: float = 0.0
    peaks: dict[int, int] = field(default_factory=dict)
    """Highest resident bytes by process."""


def run_watched(command: Sequence[str], *, out: Path, log: Path) -> Watched:
    """Run a training command that writes to ``out`` until it ends; its own output goes to ``log``.

    Raises:
        TrainingError: it failed; has its last words.
    """
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    with log.open("w") as printed:
        watched = Watched(start_s=time.perf_counter())
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env=environ)
        try:
            while process.poll() is None:
                _look(process.pid, watched, out / METRICS_FILE)
                time.sleep(LOOK_EVERY_S)
        finally:
            if process.poll() is None:  # Ctrl-C
                process.terminate()
                process.wait()
    watched.end_s = time.perf_counter()
    if process.returncode:
        raise TrainingError(f"{' '.join(command)} ended with code {process.returncode}: {_last_words(log)}")
    return watched


def _look(pid: int, watched: Watched, metrics: Path) -> None:
    if watched.first_step_s is None and metrics.is_file() and metrics.stat().st_size:
        watched.first_step_s = time.perf_counter()
    for each in _trainers(pid):
        watched.peaks[each] = max(watched.peaks.get(each, 0), _highest_resident_bytes(each))


def _trainers(pid: int) -> list[int]:
    """Return the process itself, or those that it has launched; what they fork in turn looks like them for a moment."""
    launched = _read(pid, f"task/{pid}/children").split()
    return [pid] if _trains(pid) else [int(each) for each in launched if _trains(int(each))]


def _trains(pid: int) -> bool:
    """Whether a process trains, and is neither a launcher nor a helper of one."""
    words = _read(pid, "cmdline").split("\0")
    return LAUNCHER not in words and not TRAINERS.isdisjoint(words)


def _highest_resident_bytes(pid: int) -> int:
    """Return VmHWM of a process; 0 for one that has ended."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KIB
    return 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it has ended meanwhile
        return ""


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-LAST_WORDS:].strip()


def python() -> str:
    """Return the interpreter that runs here, for the processes that are started."""
    return sys.executable
