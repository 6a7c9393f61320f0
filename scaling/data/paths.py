"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from scaling.data.errors import DataError


def expand_home(name: str) -> Path:
    """Return ``name`` as a path, ``~`` and ``~user`` at its start replaced by the home folder.

    Raises:
        DataError: there is no such user.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        user = Path(name).parts[0]
        raise DataError(
            f"{name!r} begins with {user!r}, and there is no such home folder; give the whole path"
        ) from error
