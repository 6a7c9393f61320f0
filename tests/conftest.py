"""For every test: the user's own records of runs must neither count nor grow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_records_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For runs that fixtures of a whole module start, before those of any test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data_of_modules")))
        patch.delenv("MEMORY_SCALING_RECORDS", raising=False)
        yield


@pytest.fixture(autouse=True)
def no_own_records(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
