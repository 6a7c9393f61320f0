"""Logs on disk, by everything that decides what is in them. Whatever cannot be read is made again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from io import BytesIO
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch

from scaling.data.cache import default_cache_dir
from scaling.trace.errors import TraceError
from scaling.trace.log import CAUSES, Integers, Section, TraceLog
from strategies.estimate import Phase
from strategies.versions import package_version

_LOGGER = logging.getLogger(__name__)
_COLUMNS = ("section_ends", "kind", "storage", "change_bytes", "op", "cause", "stream")
_PACKAGES = ("torch", "transformers", "deepspeed")
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


def cached(key: str, trace: Callable[[], TraceLog], *, folder: Path | None = None) -> TraceLog:
    """Return the log kept under ``key`` (of `cache_key`), or that of ``trace()``, which is then kept.

    `folder`: None for ``traces`` in the user's cache folder. A file that is missing, damaged or of other code is
    replaced; a folder that cannot be written is reported once as a warning, and the log is returned all the same.
    """
    path = (folder or default_cache_dir() / "traces") / f"{key}.npz"
    log = _read(path)
    if log is None:
        log = trace()
        _write(log, path)
    return log


def cache_key(**parts: Any) -> str:
    """Return a key for ``parts``: configurations, options, engines, batches of tensors (by shape and format).

    The versions of torch, transformers and DeepSpeed and the code of this package are part of every key.

    Raises:
        TraceError: a part, such as a lambda, cannot be told from another one by its description.
    """
    described = {name: _described(part, name) for name, part in parts.items()}
    described["versions"] = {name: package_version(name) for name in _PACKAGES}
    described["code"] = _code_digest()
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:40]


def _described(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, torch.Tensor):
        return [list(value.shape), str(value.dtype), _has_zeros(value) if where.endswith("mask") else False]
    if isinstance(value, torch.dtype):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [type(value).__qualname__, _described(fields, where)]
    if isinstance(value, Mapping):
        return {str(name): _described(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_described(item, where) for item in value]
    if isinstance(value, (FunctionType, type)) and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    if callable(getattr(value, "to_dict", None)):  # a Hugging Face configuration
        return [type(value).__qualname__, _described(value.to_dict(), where)]
    raise TraceError(
        f"{where}={value!r} cannot be part of a cache key; use a named function or a dataclass, or no cache"
    )


def _has_zeros(mask: torch.Tensor) -> bool:
    return mask.device.type != "meta" and not bool(mask.all())


@cache
def _code_digest() -> str:
    """Return a digest of the code that makes logs: this package, the storage log and who owns what."""
    package = Path(__file__).parent
    files = [*package.rglob("*.py"), *package.parent.glob("storage_log.py"), *package.parent.glob("ownership.py")]
    files += [*(package.parent / "meter").glob("attribution.py")]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> TraceLog | None:
    try:
        content = path.read_bytes()
        digest, data = content[:32], content[32:]
        if hashlib.sha256(data).digest() != digest:
            return None
        with np.load(BytesIO(data), allow_pickle=False) as stored:
            columns: dict[str, Integers] = {name: stored[name].astype(np.int64) for name in _COLUMNS}
            names = json.loads(str(stored["names"]))
    except _UNREADABLE:
        return None
    if names["causes"] != [cause.value for cause in CAUSES]:
        return None
    sections = tuple(Section(step, micro_batch, Phase(phase)) for step, micro_batch, phase in names["sections"])
    return TraceLog(sections=sections, ops=tuple(names["ops"]), assumed_values=int(names["assumed_values"]), **columns)


def _write(log: TraceLog, path: Path) -> None:
    names = {
        "sections": [[section.step, section.micro_batch, section.phase.value] for section in log.sections],
        "ops": list(log.ops),
        "causes": [cause.value for cause in CAUSES],
        "assumed_values": log.assumed_values,
    }
    buffer = BytesIO()
    np.savez_compressed(buffer, names=np.array(json.dumps(names)), **{name: getattr(log, name) for name in _COLUMNS})
    data = buffer.getvalue()
    try:
        _replace(path, hashlib.sha256(data).digest() + data)
    except OSError as error:
        _warn_once(f"traces are not kept: {path.parent} cannot be written ({error.strerror or error})")


def _replace(path: Path, content: bytes) -> None:
    """Put ``content`` in place at once, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


@cache
def _warn_once(message: str) -> None:
    _LOGGER.warning(message)
