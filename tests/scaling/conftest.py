"""What every test of the executing half starts from."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_as_at_a_terminal() -> None:
    """A shell starts background jobs with Ctrl-C ignored; pytest and every process it starts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
