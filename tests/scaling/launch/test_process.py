"""A launcher that is only a script: which signals reach it and its ranks, how often, and its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scaling.launching import REPOSITORY

LAUNCHER = """
import os, signal, subprocess, sys, time
folder, code = sys.argv[1:3]
RANK = '''
import os, signal, subprocess, sys, time
got = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: got.append(signal.Signals(number).name))
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # as one that makes batches
open(os.path.join(sys.argv[1], "ready" + os.environ["RANK"]), "w").close()
while not got: time.sleep(0.02)
time.sleep(0.3)
alive = worker.poll() is None
worker.kill()
open(os.path.join(sys.argv[1], "rank" + os.environ["RANK"]), "w").write(" ".join(got) + (" worker" if alive else ""))
'''
got = []
signal.signal(signal.SIGINT, lambda number, frame: got.append("SIGINT"))
ranks = [
    subprocess.Popen([sys.executable, "-c", RANK, folder], env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r)})
    for r in range(2)
]
for rank in ranks: rank.wait()
open(os.path.join(folder, "launcher"), "w").write(" ".join(got))
if int(code) < 0: os.kill(os.getpid(), -int(code))
sys.exit(int(code))
"""
OURS = """
import os, sys
from scaling.launch.process import run
sys.exit(str(run([sys.executable, *sys.argv[1:]], environ=os.environ)))
"""


def run(folder: Path, *, code: int, number: signal.Signals, to_group: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the launcher under ours and send a signal when its ranks are ready; what it ends with is on stderr."""
    script = folder / "launcher.py"
    script.write_text(LAUNCHER)
    process = subprocess.Popen(
        [sys.executable, "-c", OURS, str(script), str(folder), str(code)],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not all((folder / f"ready{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (os.killpg if to_group else os.kill)(process.pid, number)
    _, told = process.communicate(timeout=60)
    return subprocess.CompletedProcess(script, process.returncode, "", told)


def got(folder: Path, name: str) -> str:
    return (folder / name).read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stopping_signal_reaches_each_rank_once_and_nobody_else(number: signal.Signals, tmp_path: Path) -> None:
    done = run(tmp_path, code=0, number=number)
    # The worker of each rank lives on: it would have died of the signal.
    assert [got(tmp_path, f"rank{rank}") for rank in range(2)] == [f"{number.name} worker"] * 2
    assert got(tmp_path, "launcher") == ""
    assert done.stderr.strip() == "0"


@pytest.mark.parametrize("to_group", [False, True])
def test_ctrl_c_reaches_launcher_and_ranks_once(to_group: bool, tmp_path: Path) -> None:
    # A terminal sends it to the whole group in its foreground, a script to the one process it knows.
    run(tmp_path, code=1, number=signal.SIGINT, to_group=to_group)
    assert [got(tmp_path, name).split()[0] for name in ("rank0", "rank1", "launcher")] == ["SIGINT"] * 3
    assert [got(tmp_path, name).count("SIGINT") for name in ("rank0", "rank1", "launcher")] == [1] * 3


@pytest.mark.parametrize("code", [7, -9])
def test_what_the_launcher_ends_with_is_passed_on(code: int, tmp_path: Path) -> None:
    assert run(tmp_path, code=code, number=signal.SIGTERM).stderr.strip() == str(code)
