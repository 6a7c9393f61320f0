"""Where everything that can be made again is kept."""

from __future__ import annotations

from pathlib import Path


def default_cache_dir() -> Path:
    """Return the folder of token stores and readers' files, ``~/.cache/memory-scaling``; it may be deleted."""
    return Path.home() / ".cache" / "memory-scaling"
