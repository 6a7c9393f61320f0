"""Versions of everything that a run depends on. Imports none of it."""

from __future__ import annotations

import platform

from strategies.versions import package_version

PACKAGES = ("memory-scaling", "torch", "transformers", "deepspeed", "accelerate", "datasets", "tensorflow")


def versions() -> dict[str, str]:
    """Return the versions of Python and of every library whose behaviour a run depends on."""
    return {"python": platform.python_version(), **{name: package_version(name) for name in PACKAGES}}
