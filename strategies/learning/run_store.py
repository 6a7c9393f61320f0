"""The file of the user's runs: one line of JSON a run, appended by whatever runs at the same time."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

from strategies.errors import CalibrationError, ScalingError
from strategies.learning.run_record import RunRecord, is_plausible
from strategies.serialize import from_json, plain
from strategies.user_data import data_folder

FILE = "runs.jsonl"
VARIABLE = "MEMORY_SCALING_RECORDS"
"""Another file, or ``off``."""
OFF = "off"
MAX_LINES_NAMED = 5

logger = logging.getLogger(__name__)


def runs_path() -> Path | None:
    """Return the file of the user's runs, which may not exist yet; None where recording is turned off."""
    named = os.environ.get(VARIABLE, "").strip()
    if named.casefold() == OFF:
        return None
    return Path(named).expanduser() if named else data_folder() / FILE


def required_path() -> Path:
    """Return the file of the user's runs.

    Raises:
        CalibrationError: recording is turned off, or in a home folder that there is not.
    """
    try:
        path = runs_path()
    except RuntimeError as error:
        named = os.environ.get(VARIABLE, "")
        raise CalibrationError(f"{VARIABLE}={named}: there is no such home folder; name the file in full") from error
    if path is None:
        raise CalibrationError(f"{VARIABLE}={OFF}: no runs are recorded; unset it, or name the file that holds them")
    return path


def append_run(record: RunRecord) -> None:
    """Add a run to the user's file, unless that is turned off. No run fails for it: what goes wrong is one warning."""
    try:
        if path := runs_path():
            append_line(path, json.dumps(plain(record), separators=(",", ":")))
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        logger.warning("this run was not added to your records (%s=%s turns them off): %s", VARIABLE, OFF, error)


def append_line(path: Path, text: str) -> None:
    """Append a line in one write, so that lines of several writers stay whole (on a local disk).

    A line that an earlier writer could not finish is ended first.

    Raises:
        OSError: the operating system refuses, or has no room.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(file).st_size
        is_torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        data = (("\n" if is_torn else "") + text + "\n").encode()
        if os.write(file, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def read_runs(path: Path) -> tuple[RunRecord, ...]:
    """Return the runs of a file, oldest first; lines that hold none are left out with one warning.

    Raises:
        ScalingError: there is such a file and it cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ScalingError(
            f"cannot read the records of runs in {path}: {error.strerror}; name another with {VARIABLE}"
        ) from error
    found = {number: _record(line) for number, line in enumerate(lines, start=1) if line.strip()}
    if bad := [number for number, record in found.items() if record is None]:
        named = ", ".join(map(str, bad[:MAX_LINES_NAMED])) + (", ..." if len(bad) > MAX_LINES_NAMED else "")
        logger.warning(
            "%s: %d of %d lines are no runs that this version reads and do not count (line %s)",
            path, len(bad), len(found), named,
        )  # fmt: skip
    return tuple(record for record in found.values() if record is not None)


def _record(line: bytes) -> RunRecord | None:
    try:
        record = from_json(RunRecord, line.decode(), source="a line")
    except (ScalingError, ValueError, RecursionError):  # not UTF-8, or nested beyond reason
        return None
    return record if is_plausible(record) else None
