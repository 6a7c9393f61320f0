"""Where this program keeps what it has learned on the user's machine, and how."""

from __future__ import annotations

import os
from pathlib import Path

from strategies.errors import CalibrationError

FOLDER = "memory-scaling"


def data_folder() -> Path:
    """Return the user's folder for calibrations and records, which may not exist (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / FOLDER


def write_whole(text: str, path: Path) -> None:
    """Write a file and the folders above it; a reader never sees half of one.

    Raises:
        CalibrationError: the operating system refuses.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise CalibrationError(f"cannot write {path}: {error.strerror}; give a writable file with --out") from error
