"""The installed DeepSpeed, accelerate and transformers as the authority on what they read."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scaling.explain.key_table import KeyTable, shipped_table, table_of
from scaling.explain.sources import PACKAGES

LONGEST_S = 180.0
"""To import a package and read its models: DeepSpeed takes 5 to 10 s on two slow cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The key tables to read by, and what is to be said about their versions."""

    by_package: Mapping[str, KeyTable]
    notes: tuple[str, ...]


def installed_tables() -> Tables:
    """Return the tables of what is installed.

    Where the installed version is the one that this program's own table was made from, or the package is missing, that
    table is taken. Else one is made from the installed package, once, and kept in the cache folder.
    """
    tables, notes = dict[str, KeyTable](), list[str]()
    for package in PACKAGES.values():
        shipped, version = shipped_table(package), installed_version(package)
        table = shipped if version in (None, shipped.version) else _made(package, str(version))
        if version is None:
            notes.append(f"{package} is not installed: read as {shipped.version} reads it")
        elif table is None:
            notes.append(f"{package} {version} is installed, but its keys cannot be read: read as {shipped.version}")
        elif table is not shipped:
            notes.append(_difference(table, shipped))
        tables[package] = table or shipped
    return Tables(by_package=tables, notes=tuple(notes))


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _made(package: str, version: str) -> KeyTable | None:
    """Return the table of the installed version, None where it cannot be made."""
    path = _cache_folder() / version / f"{package}.json"
    if not path.is_file():
        command = [sys.executable, "-m", "scaling.explain.generate", str(path.parent), package]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_S)
        except (OSError, subprocess.SubprocessError):
            return None
    try:
        return table_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "memory-scaling" / "key-tables"


def _difference(table: KeyTable, shipped: KeyTable) -> str:
    """Return which keys two versions of a package do not share."""
    gone, new = sorted(set(shipped.keys) - set(table.keys)), sorted(set(table.keys) - set(shipped.keys))
    told = [
        f"{what} {', '.join(keys[:6])}{' and more' if len(keys) > 6 else ''}"
        for what, keys in (("without", gone), ("also with", new))
        if keys
    ]
    return f"{table.label} is installed (checked beside {shipped.version}): {'; '.join(told) or 'the same keys'}"
