"""Signals end a run with one line and the exit code that shells expect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from scaling.interrupt import ending_on_signals
from tests.scaling.launching import REPOSITORY

STUCK = """
import hashlib
from scaling import interrupt
interrupt.GRACE_S = 0.2
with interrupt.ending_on_signals(is_main=True) as status:
    status.reached = "in a long call"
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes in C, where Python runs no handler
"""


def end_at_step_7(number: int) -> None:
    with ending_on_signals(is_main=True) as status:
        status.reached = "after step 7"
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # a launcher's second one
            raise RuntimeError("connection closed by peer")


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_is_told_and_whatever_it_made_fail_is_not(
    number: int, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as caught:
        end_at_step_7(number)
    assert caught.value.code == exit_code
    assert capsys.readouterr().err == "interrupted after step 7\n"
    assert [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="ours"), ending_on_signals(is_main=True):
        raise RuntimeError("ours")


def end_on_another_rank() -> None:
    with ending_on_signals(is_main=False):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def test_other_ranks_end_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        end_on_another_rank()
    assert caught.value.code == 143
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stopping_signal_waits_while_training_and_while_what_it_asked_for_is_saved(number: signal.Signals) -> None:
    with ending_on_signals(is_main=True) as status:
        status.is_training = True
        os.kill(os.getpid(), number)
        assert status.asked_by == number.name
        status.is_training = False  # the ranks have agreed, and save
        os.kill(os.getpid(), number)
        assert status.received is None


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending_on_signals(is_main=True):
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_main_thread_that_does_not_come_back_is_left_behind() -> None:
    command = [sys.executable, "-c", STUCK]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=REPOSITORY, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=20)
    assert process.returncode == 143
    assert error == "interrupted in a long call\n"
