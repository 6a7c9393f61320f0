"""Versions of everything that a run depends on. Imports none of it."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGES = ("memory-scaling", "torch", "transformers", "deepspeed", "accelerate", "datasets", "tensorflow")


def versions() -> dict[str, str]:
    """Return the versions of Python and of every library whose behaviour a run depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
