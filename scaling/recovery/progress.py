"""What this rank is doing, for a thread that watches it and for the other ranks."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, final

from scaling.recovery.silence import collectives_begun

T = TypeVar("T")
NUM_FRAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a rank is."""

    marks: int
    """Marks passed since the start."""
    collectives: int
    """Begun since the start, in all groups."""
    doing: str
    line: str
    """File, line and function that its main thread runs."""
    stack: tuple[str, ...]
    """The callers of that line, outermost first: the last few."""

    @property
    def order(self) -> tuple[int, int]:
        """How far it is; a rank that is less far than the others holds them up."""
        return self.marks, self.collectives

    def __str__(self) -> str:
        return f"{self.doing}, at {self.line}"


@final
class Progress:
    """Marks along the way of a run: the same ones, in the same order, on every rank. A mark costs an assignment."""

    def __init__(self) -> None:
        self._step, self._doing = 0, "start"
        self.marks = 0
        self.is_watched = False
        """Whether marks follow each other so soon that their absence means that the run hangs."""

    def mark(self, doing: str) -> None:
        """Say what begins now."""
        self._doing = doing
        self.marks += 1

    def begin_step(self, step: int) -> None:
        """Say that an optimizer step, counted from 1, begins with its data."""
        self._step = step
        self.mark("data")

    def through(self, items: Iterable[T], doing: str) -> Iterator[T]:
        """Yield the items, each with a mark."""
        for number, item in enumerate(items, start=1):
            self.mark(f"{doing} {number}")
            yield item

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Return a context in which marks follow each other soon."""
        self.is_watched = True
        try:
            yield
        finally:
            self.is_watched = False

    def position(self) -> Position:
        """Return where the main thread is; may be called by any thread."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        lines = [f"{each.filename}:{each.lineno} in {each.name}" for each in traceback.extract_stack(frame)]
        return Position(
            marks=self.marks,
            collectives=sum(collectives_begun().values()),
            doing=f"step {self._step}, {self._doing}",
            line=lines[-1],
            stack=tuple(lines[-1 - NUM_FRAMES : -1]),
        )
