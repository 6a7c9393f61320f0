"""What metrics.jsonl holds of a run that goes on from a checkpoint: nothing of the steps that are done again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaling.disk import writing
from scaling.errors import TrainingError
from scaling.watching.records import EvaluationRecord, Record, SaveFailureRecord, StepRecord
from strategies.errors import ScalingError
from strategies.serialize import from_json

_KINDS: dict[str, type[Record]] = {"loss": StepRecord, "save_error": SaveFailureRecord}
"""By a field that no other kind has."""


def keep_until(path: Path, step: int) -> list[Record]:
    """Cut the file after ``step`` and return what it still holds; none where there is no file.

    A last line that a killed process has left unfinished goes too.

    Raises:
        TrainingError: the file cannot be written.
    """
    if not path.is_file():  # a device has no end to read to
        return []
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
    shortened = path.with_name(f".{path.name}.shortened")
    with writing(path):
        shortened.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        os.replace(shortened, path)
    return [record for line in kept if (record := _record(line, path)) is not None]


def require_steps(records: Sequence[Record], path: Path) -> None:
    """Refuse to sum up a run that is over when nothing tells of its steps any more.

    Raises:
        TrainingError: ``records``, those that ``path`` holds, have no step.
    """
    if not any(isinstance(record, StepRecord) for record in records):
        raise TrainingError(
            f"all steps are done, but {path} tells of none of them any more; give more --steps, or take the model out "
            f"with scaling checkpoint export {path.parent} --out DIR"
        )


def _step_of(line: str) -> float:
    try:
        content: Any = json.loads(line)
        return float(content["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _record(line: str, path: Path) -> Record | None:
    """Return the line's record, None for one of another version."""
    content = json.loads(line)
    kind = next((kind for field, kind in _KINDS.items() if field in content), EvaluationRecord)
    try:
        return from_json(kind, line, source=str(path))
    except ScalingError:
        return None
