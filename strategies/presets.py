"""Where the files under ``configs/`` are: beside the packages in a checkout, inside the package in a wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from strategies.errors import SpecError


@cache
def configs_folder() -> Path:
    """Return the folder that holds ``models/`` and ``gpus.csv``."""
    package = Path(__file__).resolve().parent
    for folder in (package / "_configs", package.parent / "configs"):
        if (folder / "gpus.csv").is_file():
            return folder
    raise SpecError(f"no configs folder beside {package}; reinstall the package memory-scaling")
