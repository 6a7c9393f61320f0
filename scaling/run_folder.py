"""The folder of one run: what it holds, when it may be used, and how an earlier run in it is kept."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from scaling.disk import writing
from scaling.errors import ConfigError

METRICS_FILE = "metrics.jsonl"
SUMMARY_FILE = "summary.json"
CONFIG_FILE = "train_config.json"
FINAL_FOLDER = "final"
CHECKPOINTS_FOLDER = "checkpoints"
PROFILE_FOLDER = "profile"
TENSORBOARD_FOLDER = "tensorboard"
WANDB_FOLDER = "wandb"
WATCHING_FOLDERS = (PROFILE_FOLDER, TENSORBOARD_FOLDER, WANDB_FOLDER)
RUN_FILES = (METRICS_FILE, SUMMARY_FILE, CONFIG_FILE, FINAL_FOLDER, CHECKPOINTS_FOLDER, *WATCHING_FOLDERS)
END_FILES = (SUMMARY_FILE, FINAL_FOLDER)
"""What a run leaves when it has done all its steps."""
LOCK_FILE = ".running"
"""There while a run writes to the folder; one that a killed run has left is free and does not count."""

logger = logging.getLogger(__name__)


def check_run_folder(out: Path, *, plan: Path, overwrite: bool, continues: bool = False) -> None:
    """Refuse a folder that cannot be written or holds something that the run might be mixed up with.

    The plan's own folder is accepted as long as no run is in it, any other where the run ``continues`` the one there.

    Raises:
        ConfigError: says what is there.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out={out} is a file; give a folder")
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        raise ConfigError(f"out={out} cannot be written: no permission in {existing}; give another folder")
    occupied = _occupants(out, plan=plan)
    if occupied and not (overwrite or continues):
        raise ConfigError(
            f"out={out} is not empty ({', '.join(occupied[:4])}); give another folder, or --overwrite, "
            f"which moves an earlier run aside, or --resume auto, which goes on with it"
        )


@contextmanager
def open_run_folder(out: Path, *, plan: Path, overwrite: bool, continues: bool = False) -> Iterator[None]:
    """Create the folder and keep other runs out of it until the context ends.

    What `check_run_folder` saw may be minutes old, so it is checked again under the lock. The files of an earlier run
    move into ``previous-1``, ``previous-2``, … inside the folder; of one that is continued only what it ended with.

    Raises:
        TrainingError: the folder cannot be made or written.
        ConfigError: another run writes to the folder, or it has come to hold something since it was checked.
    """
    with ExitStack() as lock:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            lock.enter_context(locked_folder(out))
            check_run_folder(out, plan=plan, overwrite=overwrite, continues=continues)
            _move_aside(out, END_FILES if continues else RUN_FILES)
        yield


@contextmanager
def locked_folder(out: Path) -> Iterator[None]:
    """Hold the lock of ``out``. The operating system frees it when its holder ends, however it ends.

    Raises:
        ConfigError: another process holds it.
    """
    path = out / LOCK_FILE
    with _locked_file(path, out) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked_file(path: Path, out: Path) -> IO[str]:
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            raise ConfigError(f"out={out} is in use: {holder} writes a run to it; give another folder") from error
        except OSError as error:
            logger.warning("out=%s: its file system cannot lock files (%s); start no other run there", out, error)
            return file
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # the holder before has ended and removed it between our opening and our locking


def _move_aside(out: Path, names: Sequence[str]) -> None:
    earlier = [out / name for name in names if (out / name).exists()]
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
    names = sorted(name for name in os.listdir(out) if name != LOCK_FILE)
    if plan.parent.resolve() == out.resolve():
        return [name for name in names if name in RUN_FILES]
    return names
