"""Free space of a file system, and whether it really can be written."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class FileSystem(Protocol):
    """What ``os.statvfs`` returns of a file system."""

    @property
    def f_frsize(self) -> int: ...
    @property
    def f_blocks(self) -> int: ...
    @property
    def f_bavail(self) -> int: ...
    @property
    def f_files(self) -> int: ...
    @property
    def f_favail(self) -> int: ...


StatFile = Callable[[Path], FileSystem]
TRIAL_BYTES = 2**20
NO_SPACE = tuple(os.strerror(each) for each in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""What the operating system says where others, or a limit, have left no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Room of a file system."""

    size_bytes: int
    free_bytes: int
    """For this user."""
    has_free_files: bool
    """Whether another file can be made: small ones use up the table of files before the space."""


def existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    absolute = path.absolute()
    return next((folder for folder in (absolute, *absolute.parents) if folder.exists()), Path("/"))


def read_space(folder: Path, stat: StatFile = os.statvfs) -> Space | None:
    """Return the room where ``folder`` lies, None where it cannot be told."""
    try:
        found = stat(folder)
    except OSError:
        return None
    return Space(
        size_bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        has_free_files=found.f_files == 0 or found.f_favail > 0,  # some file systems have no such table
    )


def why_not_writable(folder: Path) -> str:
    """Return why a file of 1 MiB cannot be written in ``folder``, empty where it can: quotas and read-only mounts too.

    The file has no name and is gone at once.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, TRIAL_BYTES)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return ""
        return error.strerror or type(error).__name__
    return ""
