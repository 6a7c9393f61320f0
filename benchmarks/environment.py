"""What a result depends on besides the code: versions and the machine."""

from __future__ import annotations

import os
import platform
import subprocess

from strategies.versions import package_version

PACKAGES = ("torch", "deepspeed", "transformers")


def environment() -> dict[str, str]:
    """Return versions, processor count and the commit, to be stored with a result."""
    return {
        "python": platform.python_version(),
        **{name: package_version(name) for name in PACKAGES},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "commit": _commit(),
    }


def _commit() -> str:
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"
