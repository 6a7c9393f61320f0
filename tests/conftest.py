"""For every test: the user's own records of predictions must neither count nor grow."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_own_records(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
