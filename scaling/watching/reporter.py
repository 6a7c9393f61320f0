"""Where the main rank sends its records: one JSON line each, what shows progress, and loggers."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from scaling.disk import writing
from scaling.watching.loggers import GuardedLogger
from scaling.watching.progress import open_progress
from scaling.watching.records import Record


class MetricsFile:
    """Appends records as JSON lines, each complete on disk before the next step begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Record) -> None:
        """Append one line.

        Raises:
            TrainingError: it cannot be written.
        """
        with writing(self._path):
            self._file.write(json.dumps(finite_or_none(dataclasses.asdict(record))) + "\n")

    def close(self) -> None:
        # Every line was flushed or its failure told; closing would try the failed one again and fail again.
        with suppress(OSError):
            self._file.close()


def finite_or_none(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``numbers`` with None for every infinite or undefined one: JSON has no word for them."""
    return {
        name: None if isinstance(number, float) and not math.isfinite(number) else number
        for name, number in numbers.items()
    }


class Reporter:
    """Where the main rank sends its records; a context, so that file, bar and loggers are closed in every case."""

    def __init__(
        self, metrics: Path, *, num_steps: int, first_step: int = 0, loggers: Sequence[GuardedLogger] = ()
    ) -> None:
        """`first_step`: steps that are done already."""
        self._file = MetricsFile(metrics)
        self._loggers = loggers
        self._progress = open_progress(num_steps=num_steps, first_step=first_step)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._progress.close()
        for each in self._loggers:
            each.close(failed=error is not None)

    def add(self, record: Record) -> None:
        """Write, show and hand on a record.

        Raises:
            TrainingError: metrics.jsonl cannot be written.
        """
        self._file.write(record)
        self._progress.show(record)
        for each in self._loggers:
            each.log(record)
