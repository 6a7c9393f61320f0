"""Who the ranks are, and which of them has gone: found by their process on this machine, by silence on others."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, final

from scaling.recovery.launcher import is_alive
from scaling.recovery.progress import Position

BREATH_S, SILENT_S = 5.0, 20.0
"""Ours: how often a rank lets other machines know that it lives, and when its silence is taken for its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of the run."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A rank that has ended before the others."""

    rank: Rank
    reason: str | None
    """What it said; None where it had no time to."""

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.rank} has ended: {self.reason}"
        return f"{self.rank} has gone without a word: it was killed, by somebody or for lack of host memory"


@final
class Roster:
    """All ranks, and a board on which each leaves what the others should know of it.

    In a quiet second a rank reads one entry of the board, whatever their number. On another machine each watches the
    rank after it only, and tells the others.
    """

    def __init__(
        self, rank: int, gather: Callable[[Callable[[], Rank]], Sequence[Rank]], store: Any, *, host: str | None = None
    ) -> None:
        """``gather``: returns what every rank has, by rank. ``store``: a torch Store that nobody else uses; None where
        there is one rank. ``host``: of this rank, found where it is not given.
        """
        mine = Rank(rank=rank, host=host or socket.gethostname(), pid=os.getpid())
        self.ranks = list(gather(lambda: mine))
        self.me = self.ranks[rank]
        self._store = store
        self._neighbours = [each for each in self.ranks if each.host == self.me.host and each != self.me]
        self._next = self.ranks[(rank + 1) % len(self.ranks)]
        self._has_other_hosts = any(each.host != self.me.host for each in self.ranks)
        self._breathed_at = -BREATH_S
        self._heard: tuple[str | None, float] | None = None

    def breathe(self) -> None:
        """Let other machines know that this rank lives, if it is time to."""
        now = time.monotonic()
        if self._has_other_hosts and now - self._breathed_at >= BREATH_S:
            self._breathed_at = now
            self._write(f"breath/{self.me.rank}", str(now))

    def left(self) -> Left | None:
        """Return a rank that has said that it ends, whose process has ended, or that has fallen silent."""
        if (text := self._read("left")) is not None:
            left = json.loads(text)
            return Left(rank=self.ranks[left["rank"]], reason=left["reason"])
        for each in self._neighbours:
            if not is_alive(each.pid):
                return self._tell(Left(rank=each, reason=None))
        if self._next.host != self.me.host and self._is_silent(self._next):
            return self._tell(Left(rank=self._next, reason=None))
        return None

    def say_farewell(self, reason: str) -> None:
        """Leave word of why this rank ends before the others."""
        self._tell(Left(rank=self.me, reason=reason))

    def is_first_to(self, act: str) -> bool:
        """Whether no other rank has asked this before; the lowest rank is the one where they cannot be asked."""
        try:
            return self._store is None or self._store.add(act, 1) == 1
        except RuntimeError:  # the rank that kept the board is the one that has ended
            return self.me == self.ranks[1]

    def post(self, position: Position) -> None:
        """Let the others know where this rank is stuck."""
        self._write(f"stuck/{self.me.rank}", json.dumps(asdict(position)))

    def positions(self) -> dict[Rank, Position]:
        """Return where every rank is stuck that has posted it."""
        found = {each: self._read(f"stuck/{each.rank}") for each in self.ranks}
        return {each: _position(text) for each, text in found.items() if text is not None}

    def _tell(self, left: Left) -> Left:
        self._write("left", json.dumps({"rank": left.rank.rank, "reason": left.reason}))
        return left

    def _is_silent(self, other: Rank) -> bool:
        breath, now = self._read(f"breath/{other.rank}"), time.monotonic()
        if self._heard is None or self._heard[0] != breath:
            self._heard = breath, now
        return now - self._heard[1] > SILENT_S

    def _write(self, key: str, text: str) -> None:
        if self._store is not None:
            with suppress(RuntimeError):  # there is nobody to tell any more
                self._store.set(key, text)

    def _read(self, key: str) -> str | None:
        try:
            # Asked first, because a store's get waits for keys that are not there.
            return self._store.get(key).decode() if self._store is not None and self._store.check([key]) else None
        except RuntimeError:
            return None


def _position(text: str) -> Position:
    content = json.loads(text)
    return Position(**{**content, "stack": tuple(content["stack"])})
