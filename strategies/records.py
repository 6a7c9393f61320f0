"""Recorded predictions and what was measured afterwards: the only source of an interval.

The shipped file `configs/prediction_errors.csv` holds pairs with their source; `scaling measure` appends the user's own
to a file of the user's data folder.
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TextIO

from strategies.presets import configs_folder

SHIPPED = "prediction_errors.csv"
OWN_FOLDER = "memory-scaling"
OWN = "records.csv"
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


@cache
def own_records() -> tuple[Record, ...]:
    """Return the user's own pairs; none where there is no file."""
    path = own_path()
    return _read(path) if path.is_file() else ()


def own_path() -> Path:
    """Return the file of the user's pairs (XDG base directory specification)."""
    folder = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(folder) / OWN_FOLDER / OWN


def append_own(records: Iterable[Record]) -> None:
    """Add pairs to the user's file, which is made where it is missing."""
    path = own_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_header = not path.exists()
    with path.open("a", newline="") as file:
        _write(file, records, header=write_header)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a file of pairs."""
    with path.open("w", newline="") as file:
        _write(file, records, header=True)


def _write(file: TextIO, records: Iterable[Record], *, header: bool) -> None:
    names = [field.name for field in fields(Record)]
    writer = csv.writer(file, lineterminator="\n")
    if header:
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
