"""What every test of the executing half starts from."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_as_at_a_terminal() -> None:
    """A shell starts background jobs with Ctrl-C ignored; pytest and every process it starts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    """Give back RANK, MASTER_ADDR and the like: engines set them for the whole process, and a process that a later test
    starts would take them for a launcher's.
    """
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be one that no launcher has started."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
