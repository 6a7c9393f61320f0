"""Ctrl-C and SIGTERM: one line that says how far the run had come, and the exit code that shells expect."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_S = 5.0
"""How long the main thread may take to end, before the process ends without it: it may wait in a collective whose
other ranks have gone. Launchers kill after 15 to 30 s (torch elastic 2.13: 30)."""


class Interrupted(KeyboardInterrupt):
    """A signal asks the run to end."""


@dataclass(slots=True, kw_only=True)
class RunStatus:
    """How far a run has come; kept up to date by the run, read when a signal ends it."""

    reached: str = "before the first step; nothing was saved"
    received: int | None = None
    """The first signal."""

    @property
    def exit_code(self) -> int:
        return 128 + (self.received or 0)

    def line(self) -> str:
        return f"interrupted {self.reached}"


@contextmanager
def ending_on_signals(*, is_main: bool) -> Iterator[RunStatus]:
    """Yield the status that the main rank prints if a signal ends what is inside; other ranks end without a word.

    Raises:
        SystemExit: a signal came, whatever it made fail inside; 130 after Ctrl-C, 143 after SIGTERM.
    """
    status = RunStatus()
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup, for one
    handler = _interrupter(status) if is_main else signal.SIG_DFL
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        with _watch(status):
            yield status
    except BaseException:
        if status.received is None:
            raise
        print(status.line(), file=sys.stderr, flush=True)
        raise SystemExit(status.exit_code) from None
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _interrupter(status: RunStatus) -> Callable[[int, Any], None]:
    def interrupt(number: int, frame: object) -> None:
        if status.received is None:  # launchers send a second signal while the first one is being followed
            status.received = number
            raise Interrupted

    return interrupt


@contextmanager
def _watch(status: RunStatus) -> Iterator[None]:
    """End the process where the main thread does not. Python runs handlers only between two of its instructions."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_end_if_stuck, args=(reader, status, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _end_if_stuck(reader: int, status: RunStatus, ended: threading.Event) -> None:
    while number := os.read(reader, 1):  # the pipe carries every signal that has a handler; empty when closed
        if number[0] in SIGNALS and not ended.wait(GRACE_S):
            status.received = status.received or number[0]
            print(status.line(), file=sys.stderr, flush=True)
            os._exit(status.exit_code)
