"""One line is left out of stderr, whoever writes it; everything else arrives, also where the block fails."""

from __future__ import annotations

import os
import sys

import pytest

from scaling.engines.quiet import without_line
from tests.scaling.launching import TORCHRUN, start


def test_the_line_alone_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    with without_line("known to be harmless"):
        print("from Python", file=sys.stderr)
        os.write(2, b"[W] this is known to be harmless, again\nfrom below\n")
    print("after", file=sys.stderr)
    assert capfd.readouterr().err == "from Python\nfrom below\nafter\n"


def test_what_was_written_before_a_failure_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        _break()
    assert capfd.readouterr().err == "why it broke\n"


def _break() -> None:
    with without_line("nothing of the kind"):
        os.write(2, b"why it broke\n")
        raise RuntimeError("broken")


@pytest.mark.distributed
def test_two_ranks_of_ddp_are_not_advised_against_their_own_setting() -> None:
    done = start([*TORCHRUN, "2", "-m", "tests.scaling.engines.quiet_worker"], timeout_s=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("trained") == 2
    assert "find_unused_parameters" not in done.stderr
