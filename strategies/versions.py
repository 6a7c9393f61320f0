"""Versions of installed packages, without importing those."""

from __future__ import annotations

from functools import cache


@cache
def package_version(name: str) -> str:
    """Return the installed version of a package, or that there is none."""
    from importlib.metadata import PackageNotFoundError, version  # most plans do without it

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
