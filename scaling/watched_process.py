"""A training command run as a user would, with what its processes hold and use while its steps go by."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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
GRACE_S = 20.0
"""How long a launcher that is told to end may take to end its ranks."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class Watched:
    """What was seen of a run. Filled while it goes on."""

    start_s: float
    first_step_s: float | None = None
    """When the line of the first step was there."""
    end_s: float = 0.0
    returncode: int = 0
    timed_out: bool = False
    peaks: dict[int, int] = field(default_factory=dict)
    """Highest resident bytes by process."""
    cpu_s: dict[int, float] = field(default_factory=dict)
    """By the number of lines in metrics.jsonl, at the moment when so many were first seen: processor seconds of all
    processes that train, since their start."""


def run_watched(command: Sequence[str], *, out: Path, log: Path) -> Watched:
    """Run a training command that writes to ``out`` until it ends; its own output goes to ``log``.

    Raises:
        TrainingError: it failed; has its last words.
    """
    watched = watch(command, out=out, log=log)
    if watched.returncode:
        raise TrainingError(f"{' '.join(command)} ended with code {watched.returncode}: {last_words(log)}")
    return watched


def watch(
    command: Sequence[str],
    *,
    out: Path,
    log: Path,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = float("inf"),
) -> Watched:
    """Run a training command that writes to ``out`` until it ends, however it does, or is ended after ``timeout_s``.

    ``environ``: variables besides those that are set here.
    """
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    with log.open("w") as printed:
        watched = Watched(start_s=time.perf_counter())
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env={**clean, **(environ or {})})
        try:
            while process.poll() is None and not watched.timed_out:
                _look(process.pid, watched, out / METRICS_FILE)
                time.sleep(LOOK_EVERY_S)
                watched.timed_out = time.perf_counter() - watched.start_s > timeout_s
        finally:
            if process.poll() is None:  # too late, or Ctrl-C
                _end(process)
    watched.end_s, watched.returncode = time.perf_counter(), process.returncode
    return watched


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and what it has started; ranks in the middle of a step have time to end by themselves."""
    started = {pid: _words(pid) for pid in _descendants(process.pid)}
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid, words in started.items():
        if words and _words(pid) == words:  # still there, and not another process of that number
            _kill(pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _look(pid: int, watched: Watched, metrics: Path) -> None:
    num_lines = _num_lines(metrics)
    if watched.first_step_s is None and num_lines:
        watched.first_step_s = time.perf_counter()
    trainers = list(_trainers(pid))
    if num_lines not in watched.cpu_s:
        watched.cpu_s[num_lines] = sum(map(_processor_s, trainers))
    for each in trainers:
        watched.peaks[each] = max(watched.peaks.get(each, 0), _highest_resident_bytes(each))


def _num_lines(metrics: Path) -> int:
    try:
        return metrics.read_bytes().count(b"\n")
    except OSError:  # no step yet
        return 0


def _trainers(pid: int) -> Iterator[int]:
    """Yield the process itself, or those that it has launched; what they fork in turn looks like them for a moment."""
    if _trains(pid):
        yield pid
        return
    for child in _children(pid):
        yield from _trainers(child)


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    return [int(each) for each in _read(pid, f"task/{pid}/children").split()]


def _trains(pid: int) -> bool:
    """Whether a process trains: python runs our module itself, not a launcher that has it as an argument."""
    words = [word for word in _words(pid)[1:4] if word != "-u"]
    return len(words) > 1 and words[0] == "-m" and words[1] in TRAINERS


def _words(pid: int) -> list[str]:
    """Return the command line of a process; nothing of one that has ended."""
    return _read(pid, "cmdline").split("\0")[:-1]


def _processor_s(pid: int) -> float:
    """Return the seconds that a process has used, in it and in the kernel; 0 for one that has ended. See proc(5)."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def _highest_resident_bytes(pid: int) -> int:
    """Return VmHWM of a process; 0 for one that has ended."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KIB
    return 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""


def last_words(log: Path) -> str:
    """Return the end of what a run has printed."""
    return log.read_text(errors="replace")[-LAST_WORDS:].strip()


def python() -> str:
    """Return the interpreter that runs here, for the processes that are started."""
    return sys.executable
