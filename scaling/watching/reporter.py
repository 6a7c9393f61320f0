"""Where the main rank sends its records: one JSON line each, and a progress bar."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from scaling.disk import writing
from scaling.watching.records import EvaluationRecord, Record, StepRecord


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


class Progress:
    """A bar on stderr with the last loss and speed; only the main rank makes one."""

    def __init__(self, *, num_steps: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=num_steps, unit="step", file=sys.stderr, dynamic_ncols=True, mininterval=1.0)

    def show(self, record: Record) -> None:
        match record:
            case StepRecord():
                text = f"loss {record.loss:.4f}, {record.tokens_per_s:,.0f} tokens/s"
                self._bar.set_postfix_str(text, refresh=False)
                self._bar.update()
            case EvaluationRecord():
                self._bar.write(f"step {record.step}: eval_loss {record.eval_loss:.4f}", file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


class Reporter:
    """Where the main rank sends its records; a context, so that file and bar are closed in every case."""

    def __init__(self, metrics: Path, *, num_steps: int) -> None:
        self._file = MetricsFile(metrics)
        self._progress = Progress(num_steps=num_steps)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._progress.close()

    def add(self, record: Record) -> None:
        self._file.write(record)
        self._progress.show(record)
