"""Recorded predictions and what was measured afterwards, as they come with the package.

`configs/prediction_errors.csv` holds pairs with their source. The user's own runs: `strategies.learning`.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import Path

from strategies.presets import configs_folder

SHIPPED = "prediction_errors.csv"
MAX_BYTES = 2**60
"""An exbibyte: above any device."""

logger = logging.getLogger(__name__)


class Device(StrEnum):
    """What a prediction was about: errors are of another kind on each."""

    CPU = "cpu"
    """Our own trainer under the storage meter."""
    GPU = "gpu"
    """Published runs, mostly of other people's code."""


class Kind(StrEnum):
    """Which of the two peaks was measured."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One prediction beside its measurement."""

    device: Device
    kind: Kind
    predicted_bytes: int
    measured_bytes: int
    label: str
    """Which run it was, for people."""
    source: str

    @property
    def measured_over_predicted(self) -> float:
        return self.measured_bytes / self.predicted_bytes


@cache
def shipped_records() -> tuple[Record, ...]:
    """Return the pairs that come with the package."""
    return _read(configs_folder() / SHIPPED)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a file of pairs."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [field.name for field in fields(Record)]
        writer.writerow(names)
        writer.writerows([getattr(record, name) for name in names] for record in records)


def _read(path: Path) -> tuple[Record, ...]:
    """Return the pairs of a file; rows that hold none are left out with a warning."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        logger.warning("cannot read the records of predictions in %s: %s", path, error)
        return ()
    found = [_record(row) for row in rows]
    if num_bad := found.count(None):
        logger.warning("%s: %d of %d rows are no records of predictions and do not count", path, num_bad, len(rows))
    return tuple(record for record in found if record is not None)


def _record(row: dict[str, str]) -> Record | None:
    try:
        record = Record(
            device=Device(row["device"]),
            kind=Kind(row["kind"]),
            predicted_bytes=int(row["predicted_bytes"]),
            measured_bytes=int(row["measured_bytes"]),
            label=row["label"],
            source=row["source"],
        )
    except (KeyError, ValueError, TypeError):
        return None
    is_plausible = all(0 < each <= MAX_BYTES for each in (record.predicted_bytes, record.measured_bytes))
    return record if is_plausible else None
