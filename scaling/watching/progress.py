"""How far the main rank's run has come, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO, final

from scaling.watching.records import EvaluationRecord, Record, StepRecord
from strategies.units import format_seconds

LINE_EVERY_S = 30.0
"""Between two lines of a log file: a bar drawn again every second would fill it."""


class Progress(Protocol):
    """Shows records as they come."""

    def show(self, record: Record) -> None:
        """Take note of a record."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def open_progress(*, num_steps: int, first_step: int) -> Progress:
    """Return what fits stderr; ``first_step``: how many are done already."""
    if sys.stderr.isatty():
        return Bar(num_steps=num_steps, first_step=first_step)
    return Lines(sys.stderr, num_steps=num_steps)


@final
class Bar:
    """A bar with steps per second, the time that is left, the last loss and speed."""

    def __init__(self, *, num_steps: int, first_step: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=num_steps, initial=first_step, unit="step", file=sys.stderr, dynamic_ncols=True, mininterval=1.0
        )

    def show(self, record: Record) -> None:
        match record:
            case StepRecord():
                self._bar.set_postfix_str(_text(record), refresh=False)
                self._bar.update()
            case EvaluationRecord():
                self._bar.write(_evaluation_text(record), file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


@final
class Lines:
    """A line at the first step, the last one, every evaluation, and every half minute."""

    def __init__(self, stream: TextIO, *, num_steps: int, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._num_steps = num_steps
        self._now = now
        self._first: tuple[int, float] | None = None
        self._last_line_s = 0.0

    def show(self, record: Record) -> None:
        match record:
            case StepRecord():
                self._step(record)
            case EvaluationRecord():
                self._write(_evaluation_text(record))

    def close(self) -> None:
        """Nothing is held."""

    def _step(self, record: StepRecord) -> None:
        is_first, now = self._first is None, self._now()
        if self._first is None:
            self._first = (record.step, now)
        if is_first or record.step == self._num_steps or now - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = now
            left = self._left_s(record.step, now)
            rest = f", {format_seconds(left)} left" if left else ""
            self._write(f"step {record.step}/{self._num_steps}: {_text(record)}{rest}")

    def _left_s(self, step: int, now: float) -> float | None:
        """Return the seconds until the last step at the pace so far; everything between steps counts."""
        assert self._first is not None
        first_step, first_s = self._first
        return (self._num_steps - step) * (now - first_s) / (step - first_step) if step > first_step else None

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _text(record: StepRecord) -> str:
    return f"loss {record.loss:.4f}, {record.tokens_per_s:,.0f} tokens/s"


def _evaluation_text(record: EvaluationRecord) -> str:
    metrics = "".join(f", {name} {value:.4f}" for name, value in record.eval_metrics.items())
    return f"step {record.step}: eval_loss {record.eval_loss:.4f}{metrics}"
