"""The launcher as a process of ours: signals reach it or its ranks once, and its exit code is ours.

It has a process group of its own, so that a terminal's Ctrl-C does not reach it a second time beside us.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scaling.interrupt import STOPPING
from scaling.recovery.launcher import STARTER, parent_of

ENDING = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""For the launcher and all its processes, as a terminal sends them."""


def run(words: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Run a launcher until it ends and return its exit code, negative for a signal, as `subprocess` does.

    SIGTERM and SIGUSR1 go to the ranks themselves, which save and end with 0: launchers give them 30 s or tell them
    nothing (docs/training.md). Before there are ranks they go to the launcher.
    """
    environ = {**environ, STARTER: str(os.getpid())}
    with (
        subprocess.Popen(words, env=environ, process_group=0, stdin=subprocess.DEVNULL) as process,
        _passing_on(process),
    ):
        return process.wait()


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        ranks = list(ranks_of(process.pid))
        for pid in ranks:
            _send(os.kill, pid, number)
        if not ranks:
            _send(os.killpg, process.pid, number)

    def end(number: int, frame: object) -> None:
        _send(os.killpg, process.pid, number)

    handlers: dict[signal.Signals, Callable[[int, Any], None]] = {
        **dict.fromkeys(STOPPING, stop),
        **dict.fromkeys(ENDING, end),
    }
    ignored = [number for number in handlers if signal.getsignal(number) is signal.SIG_IGN]  # nohup, for one
    before = {number: signal.signal(number, handler) for number, handler in handlers.items() if number not in ignored}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def ranks_of(launcher: int) -> Iterator[int]:
    """Yield the processes below ``launcher`` that a launcher has given a rank; their own children are not meant."""
    children: dict[int, list[int]] = {}
    for pid in _processes():
        children.setdefault(parent_of(pid) or 0, []).append(pid)
    waiting = [launcher]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            if _has_rank(pid):
                yield pid
            else:
                waiting.append(pid)


def _processes() -> Iterator[int]:
    with suppress(OSError):  # no /proc: nobody can be found
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _has_rank(pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(each.startswith(b"LOCAL_RANK=") for each in variables)


def _send(send: Callable[[int, int], None], target: int, number: int) -> None:
    with suppress(ProcessLookupError):
        send(target, number)
