"""One message for one mistake, wherever it was made."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scaling.ranks import report_error
from strategies.errors import ScalingError
from tests.scaling.launching import TORCHRUN, start

SPEAKING = """
import os, sys
from scaling.ranks import results_only_on_stdout
with results_only_on_stdout() as results:
    print("a library speaks")
    os.system("echo a compiler speaks")
    results.write("the result\\n")
print("afterwards")
"""


@pytest.mark.distributed
def test_what_fails_on_one_rank_is_told_by_rank_0_and_ends_all() -> None:
    done = start([*TORCHRUN, "2", "-m", "tests.scaling.ranks_worker"])
    assert done.returncode != 0
    assert done.stderr.count("error: the disk of rank 1 is full") == 1
    assert "error on rank" not in done.stderr


def test_rank_0_speaks_at_once_and_others_wait_for_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    report_error(ScalingError("no"), rank=0)
    assert (waited, capsys.readouterr().err) == ([], "error: no\n")
    report_error(ScalingError("no"), rank=3)
    assert (len(waited), capsys.readouterr().err) == (1, "error on rank 3: no\n")


def test_stdout_is_for_results_alone() -> None:
    done = subprocess.run([sys.executable, "-c", SPEAKING], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "the result\nafterwards\n"
    # In either order: what Python prints waits in its buffer unless PYTHONUNBUFFERED is set.
    assert sorted(done.stderr.splitlines()) == ["a compiler speaks", "a library speaks"]
