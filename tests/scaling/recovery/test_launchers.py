"""Signals to launchers, ranks that are killed, ranks that hang: what is saved, what is said, and how soon."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from scaling.ports import free_port
from strategies.detect import oom_kills
from tests.scaling.decisions import plan_tiny
from tests.scaling.launching import BIN, REPOSITORY, TORCHRUN, start

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

NUM_STEPS = 100_000
"""Far more than are done before something happens."""
TORCHRUN_2 = (*TORCHRUN, "2", "-m")


@dataclass(kw_only=True)
class Started:
    """A training run on two ranks that has done some steps."""

    process: subprocess.Popen[bytes]
    ranks: dict[int, psutil.Process]
    out: Path
    log: Path

    def wait_for_ranks(self, timeout_s: float) -> float:
        """Return after how many seconds no rank ran any more."""
        began = time.perf_counter()
        _, running = psutil.wait_procs(self.ranks.values(), timeout=timeout_s)
        assert not running, self.log.read_text()[-3000:]
        return time.perf_counter() - began


@contextmanager
def started(folder: Path, head: list[str]) -> Iterator[Started]:
    plan = plan_tiny(folder, "ddp", world_size=2)
    out, log = folder / "run", folder / "log"
    flags = ["scaling.train", "--plan", plan, "--out", out, "--steps", NUM_STEPS]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        command = [str(part) for part in (*head, *flags)]
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdout=file, stderr=file)
    ranks: dict[int, psutil.Process] = {}
    try:
        while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_bytes().splitlines()) < 5:
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.1)
        ranks = {int(each.environ()["RANK"]): each for each in _ranks_of(process.pid)}
        yield Started(process=process, ranks=ranks, out=out, log=log)
    finally:
        for each in (process, *ranks.values()):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def _ranks_of(launcher: int) -> list[psutil.Process]:
    found = psutil.Process(launcher).children(recursive=True)
    return [each for each in found if "RANK" in each.environ() and each.name().startswith("python")]


def deepspeed() -> list[str]:
    return [str(BIN / "deepspeed"), "--num_gpus", "2", "--master_port", str(free_port()), "--module"]


@pytest.mark.parametrize(("launcher", "reason"), [("torchrun", "SIGTERM"), ("deepspeed", "the end of the launcher")])
def test_a_launcher_that_is_told_to_end_leaves_a_checkpoint(launcher: str, reason: str, tmp_path: Path) -> None:
    head = deepspeed() if launcher == "deepspeed" else list(TORCHRUN_2)
    with started(tmp_path, head) as run:
        run.process.send_signal(signal.SIGTERM)
        assert run.wait_for_ranks(30) < 20.0
    text = run.log.read_text()
    told = re.search(rf"stopped (?:by {reason} )?after step (\d+) of {NUM_STEPS}; saved in (\S+)", text)
    assert told, text[-3000:]
    steps = (run.out / "metrics.jsonl").read_bytes().splitlines()
    assert len(steps) == int(told[1])
    assert 'Traceback (most recent call last):\n  File "/' not in text or launcher == "torchrun"  # its own
    if launcher == "deepspeed":  # in one process: test_in_one_process.py
        goes_on(run, plan=tmp_path / "plan.json", from_step=int(told[1]))


def goes_on(run: Started, *, plan: Path, from_step: int) -> None:
    flags = ["--plan", plan, "--out", run.out, "--steps", str(from_step + 2), "--resume", "auto"]
    done = start([*TORCHRUN_2, "scaling.train", *flags])
    assert done.returncode == 0, done.stderr[-3000:]
    assert len((run.out / "metrics.jsonl").read_bytes().splitlines()) == from_step + 2


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_named_by_the_other(killed: int, tmp_path: Path) -> None:
    with started(tmp_path, list(TORCHRUN_2) if killed else deepspeed()) as run:
        run.ranks[killed].kill()
        assert run.wait_for_ranks(30) < 30.0
    text = run.log.read_text()
    assert f"error: rank {killed} (pid {run.ranks[killed].pid} on " in text
    assert "has gone without a word: it was killed" in text
    # The kernel has not ended it, so it does not say so; this machine has counters, or the line is not there.
    assert ("the kernel has counted no process" in text) == (oom_kills() is not None)
    assert re.search(r"host memory now, after it has gone: \d+\.\d\d GiB of \d+\.\d\d GiB \(.+\) in use", text)
    assert re.search(r"the plan takes \d+\.\d\d MiB a node .*: Python and libraries 720\.00 MiB", text)  # 2 x 360


def test_a_rank_that_hangs_is_named_with_its_line(tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path, "ddp", world_size=2)
    flags = ["--plan", plan, "--out", tmp_path / "run", "--steps", "9", "--timeout-s", "4"]
    began = time.perf_counter()
    done = start([*TORCHRUN_2, "tests.scaling.recovery.sleepy_train", "1", *flags], timeout_s=120)
    assert time.perf_counter() - began < 60.0
    assert done.returncode == 1
    told = re.search(
        r"error: no progress for 4 s; rank 1 \(pid \d+ on \S+\) held the others up:\n((?:  .*\n)+)", done.stderr
    )
    assert told, done.stderr[-3000:]
    sleeping = r"  rank 1 \(pid \d+ on \S+\): step 3, micro batch 2 of 2, at \S+/sleepy_train\.py:\d+ in fall_asleep\n"
    assert re.search(sleeping, told[1]), told[1]
    assert re.search(r"  rank 0 \(.*\): step 3, ", told[1]), told[1]
