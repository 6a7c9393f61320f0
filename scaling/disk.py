"""Writing that fails with one line: what could not be written, why, and how much space is left there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scaling.errors import ExportError, TrainingError, one_line
from strategies.errors import ScalingError
from strategies.units import format_bytes


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write the file ``path`` inside.

    Raises:
        TrainingError: the operating system refuses; names ``path`` and the free space.
    """
    try:
        yield
    except OSError as error:
        raise TrainingError(f"cannot write {what_failed(path, error)}") from error


@contextmanager
def exporting(folder: Path, *, partial: Path) -> Iterator[None]:
    """Write ``folder`` by way of ``partial`` inside; what is in ``partial`` is removed where writing fails.

    Raises:
        ExportError: names ``folder`` and the free space. Our own errors pass, and leave ``partial`` to be looked at.
    """
    try:
        yield
    except ScalingError:
        raise
    except KeyboardInterrupt:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except Exception as error:  # a full disk is SafetensorError in safetensors 0.8 and a bare Exception in tokenizers
        reason = what_failed(folder, error)  # before what is written goes, and its space is free again
        shutil.rmtree(partial, ignore_errors=True)
        raise ExportError(f"cannot write the model to {reason}") from error


def what_failed(path: Path, error: Exception) -> str:
    reason = (error.strerror if isinstance(error, OSError) else None) or one_line(error)
    return f"{path}: {reason} ({_free(path)}); free space or give another --out"


def _free(path: Path) -> str:
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    try:
        return f"{format_bytes(shutil.disk_usage(folder).free)} free there"
    except OSError:
        return "free space unknown"
