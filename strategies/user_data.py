"""Where this program keeps what it has learned on the user's machine."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "memory-scaling"


def data_folder() -> Path:
    """Return the user's folder for calibrations and records, which may not exist (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / FOLDER
