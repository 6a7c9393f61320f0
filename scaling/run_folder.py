"""The folder of one run: what it holds, when it may be used, and how an earlier run in it is kept."""

from __future__ import annotations

import os
from pathlib import Path

from scaling.errors import ConfigError

METRICS_FILE = "metrics.jsonl"
SUMMARY_FILE = "summary.json"
CONFIG_FILE = "train_config.json"
FINAL_FOLDER = "final"
RUN_FILES = (METRICS_FILE, SUMMARY_FILE, CONFIG_FILE, FINAL_FOLDER)


def check_run_folder(out: Path, *, plan: Path, overwrite: bool) -> None:
    """Refuse a folder that cannot be written or holds something that the run might be mixed up with.

    The plan's own folder is accepted as long as no run is in it.

    Raises:
        ConfigError: says what is there.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out={out} is a file; give a folder")
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        raise ConfigError(f"out={out} cannot be written: no permission in {existing}; give another folder")
    occupied = _occupants(out, plan=plan)
    if occupied and not overwrite:
        raise ConfigError(
            f"out={out} is not empty ({', '.join(occupied[:4])}); give another folder, or --overwrite, "
            f"which moves an earlier run aside"
        )


def open_run_folder(out: Path) -> None:
    """Create the folder, moving the files of an earlier run into ``previous-1``, ``previous-2``, … inside it."""
    out.mkdir(parents=True, exist_ok=True)
    earlier = [out / name for name in RUN_FILES if (out / name).exists()]
    if not earlier:
        return
    number = 1
    while (kept := out / f"previous-{number}").exists():
        number += 1
    kept.mkdir()
    for path in earlier:
        path.rename(kept / path.name)


def _occupants(out: Path, *, plan: Path) -> list[str]:
    if not out.exists():
        return []
    names = sorted(os.listdir(out))
    if plan.parent.resolve() == out.resolve():
        return [name for name in names if name in RUN_FILES]
    return names
