"""Real runs by `scaling launch`: each launcher once, as users start them, and a job script under a Slurm of our own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from scaling.ports import free_port
from strategies.decision import Decision
from strategies.emit.files import write_plan
from strategies.serialize import read_json
from tests.scaling.decisions import plan_tiny
from tests.scaling.launching import REPOSITORY

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

LAUNCH = (sys.executable, "-m", "scaling.cli", "launch", "--plan")
FOREVER = ("--", "--steps", "100000", "--out")
SLURM = {
    # As srun(1) and scontrol(1) say: srun runs the task and hands SIGUSR1 to it, and to nothing that the task starts.
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_NODEID=0 "$@" & task=$!
trap 'kill -USR1 "$task"' USR1
while kill -0 "$task" 2> /dev/null; do wait "$task"; done
wait "$task"
""",
    "scontrol": """#!/bin/bash
echo "$@" >> "$(dirname "$0")/scontrol.log"
""",
}


@dataclass(frozen=True, kw_only=True)
class Started:
    """A launch that goes on."""

    process: subprocess.Popen[bytes]
    out: Path
    log: Path

    def text(self) -> str:
        return self.log.read_text()

    def wait_for_steps(self, number: int) -> None:
        deadline = time.monotonic() + 240
        metrics = self.out / "metrics.jsonl"
        while not metrics.exists() or len(metrics.read_bytes().splitlines()) < number:
            assert self.process.poll() is None, self.text()[-3000:]
            assert time.monotonic() < deadline, self.text()[-3000:]
            time.sleep(0.1)

    def succeed(self) -> None:
        assert self.process.wait(timeout=240) == 0, self.text()[-3000:]


def started(folder: Path, words: Sequence[object], *, name: str = "run", **environ: str) -> Started:
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
            stdout=file,
            stderr=file,
        )
    return Started(process=process, out=folder / "run", log=log)


def test_by_torchrun_until_it_is_told_to_stop(tmp_path: Path) -> None:
    run = started(tmp_path, [*LAUNCH, plan_tiny(tmp_path, "ddp", world_size=2), *FOREVER, tmp_path / "run"])
    run.wait_for_steps(3)
    run.process.send_signal(signal.SIGTERM)
    # torchrun itself would have ended with 1, and its ranks by SIGKILL after 30 s.
    run.succeed()
    assert "launcher: torchrun (one machine" in run.text()
    assert re.search(r"stopped (by SIGTERM )?after step \d+ of 100000; saved in \S+step-", run.text())


@pytest.mark.deepspeed
def test_by_accelerate_on_two_nodes_that_are_one_machine(tmp_path: Path) -> None:
    decision = read_json(Decision, plan_tiny(tmp_path, "zero2", world_size=2))
    write_plan(replace(decision, cluster=replace(decision.cluster, gpus_per_node=1)), folder=tmp_path, overwrite=True)
    head = [*LAUNCH, tmp_path / "plan.json", "--launcher", "accelerate", "--master-addr", "127.0.0.1"]
    meet = ["--master-port", free_port(), "--node-rank"]
    train = ["--", "--steps", 3, "--out", tmp_path / "run"]
    nodes = [started(tmp_path, [*head, *meet, rank, *train], name=f"node{rank}") for rank in range(2)]
    for node in nodes:
        node.succeed()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "run" / "final" / "model.safetensors").exists()


@pytest.mark.deepspeed
def test_by_deepspeed_with_a_host_file_and_without_ssh(tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path, "ddp", world_size=2)
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    words = [*LAUNCH, plan, "--launcher", "deepspeed", "--hostfile", hosts, "--master-port", free_port()]
    run = started(tmp_path, [*words, "--", "--steps", 100000, "--out", tmp_path / "run"])
    run.wait_for_steps(3)
    ranks = [each for each in psutil.Process(run.process.pid).children(recursive=True) if "RANK" in each.environ()]
    next(each for each in ranks if each.environ()["RANK"] == "1").kill()
    assert run.process.wait(timeout=60) not in (0, None)
    assert "error: rank 1 (pid" in run.text()
    if "a process was killed (signal 9)" in run.text():  # else its word has come first, and it has ended with 1
        assert "host memory now, after it has gone" in run.text()


def test_a_job_script_saves_before_its_time_is_up_and_queues_itself_again(tmp_path: Path) -> None:
    programs = tmp_path / "slurm"
    programs.mkdir()
    for name, text in SLURM.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    plan = plan_tiny(tmp_path, "ddp", world_size=2)
    job = tmp_path / "job.sh"
    words = [*LAUNCH, plan, "--launcher", "slurm", "--time", "1:00:00", *FOREVER, tmp_path / "run"]
    done = subprocess.run(list(map(str, words)), cwd=REPOSITORY, capture_output=True, text=True, check=True)
    job.write_text(done.stdout)
    path = f"{programs}:{os.environ['PATH']}"
    run = started(tmp_path, ["bash", job], PATH=path, SLURM_JOB_ID="77", SLURM_CPUS_PER_TASK="2")
    run.wait_for_steps(3)
    run.process.send_signal(signal.SIGUSR1)  # as Slurm does to the script alone: --signal=B:USR1
    run.succeed()
    assert re.search(r"stopped (by SIGUSR1 )?after step \d+ of 100000; saved in ", run.text())
    assert (programs / "scontrol.log").read_text().split() == ["requeue", "77"]
