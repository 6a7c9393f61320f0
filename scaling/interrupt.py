"""Signals. SIGTERM and SIGUSR1 end training after the step, with a checkpoint and exit code 0; Ctrl-C ends it at once.

Before training and after it there is nothing to save, and all three end the run at once: with one line that says how
far it had come, and the exit code that shells expect.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGUSR1)
SIGNALS = (signal.SIGINT, *STOPPING)
GRACE_S = 5.0
"""How long the main thread may take to end, before the process ends without it: it may wait in a collective whose
other ranks have gone. Launchers kill after 15 to 30 s (torch elastic 2.13: 30)."""


class Interrupted(KeyboardInterrupt):
    """A signal asks the run to end at once."""


@dataclass(slots=True, kw_only=True)
class RunStatus:
    """How far a run has come; kept up to date by the run, read when a signal ends it."""

    reached: str = "before the first step; nothing was saved"
    received: int | None = None
    """The first signal that ends the run at once."""
    is_training: bool = False
    """Whether a stopping signal waits for the end of the step."""
    asked_by: str | None = None
    """What asked the run to stop after its step: a signal, or the end of the launcher."""

    @property
    def exit_code(self) -> int:
        return 128 + (self.received or 0)

    def line(self) -> str:
        return f"interrupted {self.reached}"

    def ask_to_stop(self, reason: str) -> None:
        """Let all ranks save and end after the step that runs; the first reason is kept."""
        if self.asked_by is None:
            self.asked_by = reason

    def waits_for_step(self, number: int) -> bool:
        """Whether a signal is to be followed later, or has been already: launchers repeat it while a run saves."""
        return number in STOPPING and (self.is_training or self.asked_by is not None)


@contextmanager
def ending_on_signals(*, is_main: bool) -> Iterator[RunStatus]:
    """Yield the status that the main rank prints if a signal ends what is inside; other ranks end without a word.

    Raises:
        SystemExit: a signal came that did not wait for a step, whatever it made fail inside; 130 after Ctrl-C, 143
            after SIGTERM.
    """
    status = RunStatus()
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup, for one
    handler = _interrupter(status)
    before = {number: signal.signal(number, handler) for number in handled}
    if not is_main and signal.SIGINT in before:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with _watch(status, is_main=is_main):
            yield status
    except BaseException:
        if status.received is None:
            raise
        if is_main:
            print(status.line(), file=sys.stderr, flush=True)
        raise SystemExit(status.exit_code) from None
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _interrupter(status: RunStatus) -> Callable[[int, Any], None]:
    def interrupt(number: int, frame: object) -> None:
        if status.waits_for_step(number):
            status.ask_to_stop(signal.Signals(number).name)
        elif status.received is None:  # launchers send a second signal while the first one is being followed
            status.received = number
            raise Interrupted

    return interrupt


@contextmanager
def _watch(status: RunStatus, *, is_main: bool) -> Iterator[None]:
    """End the process where the main thread does not. Python runs handlers only between two of its instructions."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_end_if_stuck, args=(reader, status, ended, is_main), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _end_if_stuck(reader: int, status: RunStatus, ended: threading.Event, is_main: bool) -> None:
    while byte := os.read(reader, 1):  # the pipe carries every signal that has a handler; empty when closed
        number = byte[0]
        if number not in SIGNALS:
            continue
        if status.waits_for_step(number):
            status.ask_to_stop(signal.Signals(number).name)  # a step may be one long call, in which no handler runs
        elif not ended.wait(GRACE_S):
            status.received = status.received or number
            if is_main:
                print(status.line(), file=sys.stderr, flush=True)
            os._exit(status.exit_code)
