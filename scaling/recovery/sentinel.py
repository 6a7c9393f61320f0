"""A thread that notices what the main thread cannot, because it waits: a dead rank, a hanging one, a lost launcher."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

from scaling.interrupt import RunStatus
from scaling.recovery.killed import HostWatch
from scaling.recovery.launcher import Launcher
from scaling.recovery.progress import Position, Progress
from scaling.recovery.roster import Rank, Roster

POLL_S = 1.0
ANSWER_S = 10.0
"""How long stuck ranks wait for each other's word before one of them speaks."""
EXPLAIN_S = 6.0
"""How long a rank whose collective failed looks for the rank that broke it."""
LISTEN_S = 2.0
"""How long the other ranks leave the word to the one that speaks: the first that ends makes the launcher end all."""
EXIT_CODE = 1


@final
class Sentinel:
    """Watches this rank and the others, and ends the process with one message where the run cannot go on."""

    def __init__(
        self,
        roster: Roster,
        progress: Progress,
        status: RunStatus,
        *,
        launcher: Launcher | None,
        host: HostWatch,
        patience_s: float,
    ) -> None:
        """``launcher``: None where nobody's end means that the run should end. ``patience_s``: without a mark."""
        self._roster, self._progress, self._status = roster, progress, status
        self._launcher, self._host = launcher, host
        self._patience_s = patience_s
        self._ended = threading.Event()
        self._marks, self._since = -1, 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the context ends. It must end on each rank before a collective that no rank leaves early."""
        thread = threading.Thread(target=self._watch, daemon=True, name="sentinel")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def explain_failed_collective(self) -> None:
        """End the process with the name of the rank that has gone; return where none has."""
        deadline = time.monotonic() + EXPLAIN_S
        while time.monotonic() < deadline:
            self._end_if_rank_has_left()
            time.sleep(0.1)

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            self._look_at_launcher()
            self._end_if_rank_has_left()
            self._roster.breathe()
            if self._is_stuck():
                self._end_stuck()

    def _look_at_launcher(self) -> None:
        if self._launcher is None or not self._launcher.is_gone:
            return
        self._launcher = None
        if self._status.is_training:
            self._status.ask_to_stop("the end of the launcher")
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def _end_if_rank_has_left(self) -> None:
        left = self._roster.left()
        if left is None:
            return
        says_it_itself = left.rank.rank == 0 and left.reason is not None
        if not says_it_itself and self._roster.is_first_to("tell who left"):
            here = left.reason is None and left.rank.host == self._roster.me.host
            text = f"{left}; the run ends {self._status.reached}"
            self._say("\n  ".join([text, *(self._host.lines() if here else ())]))
        time.sleep(LISTEN_S)
        os._exit(EXIT_CODE)

    def _is_stuck(self) -> bool:
        now = time.monotonic()
        if self._progress.marks != self._marks or not self._progress.is_watched:
            self._marks, self._since = self._progress.marks, now
        return now - self._since > self._patience_s

    def _end_stuck(self) -> None:
        speaks = self._roster.is_first_to("tell who is stuck")
        self._roster.post(self._progress.position())
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and not (speaks and self._all_have_posted()):
            time.sleep(0.2)
        if speaks:
            positions = self._roster.positions()
            silent = [rank for rank in self._roster.ranks if rank not in positions]
            text = f"no progress for {self._patience_s:g} s; {describe_stuck(positions, silent)}"
            self._say(f"{text}\nthe run ends {self._status.reached}")
        else:
            time.sleep(LISTEN_S)
        os._exit(EXIT_CODE)

    def _all_have_posted(self) -> bool:
        return len(self._roster.positions()) == len(self._roster.ranks)

    def _say(self, text: str) -> None:
        print(f"error: {text}", file=sys.stderr, flush=True)


def describe_stuck(positions: Mapping[Rank, Position], silent: Sequence[Rank]) -> str:
    """Return which rank holds the others up and the line where each of them is."""
    lines = [f"  {rank}: {position}" for rank, position in positions.items()]
    lines += [f"  {rank}: no answer; its Python does not run" for rank in silent]
    behind = silent or _behind(positions)
    verdict = f"{_names(behind)} held the others up" if behind else "no rank is behind the others"
    stacks = [f"  {rank} came there by\n{_indented(positions[rank])}" for rank in behind if rank in positions]
    return "\n".join([f"{verdict}:" if len(positions) + len(silent) > 1 else "it was here:", *lines, *stacks])


def _behind(positions: Mapping[Rank, Position]) -> list[Rank]:
    last = min(position.order for position in positions.values())
    behind = [rank for rank, position in positions.items() if position.order == last]
    return behind if len(behind) < len(positions) else []


def _names(ranks: Sequence[Rank]) -> str:
    return ", ".join(map(str, ranks))


def _indented(position: Position) -> str:
    return "\n".join(f"    {line}" for line in position.stack)
