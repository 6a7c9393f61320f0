"""`scaling launch` in this process: what it prints, and what it refuses before any process starts."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.launch import process
from strategies.cluster import gpu_preset
from strategies.decision import Decision
from strategies.emit.files import write_plan
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.plan import StrategyName
from strategies.search import FixedParts
from strategies.select import decide
from strategies.serialize import read_json
from tests.scaling.decisions import plan_tiny
from tests.scaling.launching import run_cli

TRAIN = ("--", "--steps", "3", "--out", "run")


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **options: object) -> int:
        raise AssertionError(f"started {words}")

    monkeypatch.setattr(process, "run", refuse)
    for name in ("LOCAL_RANK", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def changed(plan: Path, **cluster: object) -> Path:
    """Write a plan again for another cluster."""
    decision = read_json(Decision, plan)
    write_plan(
        replace(decision, cluster=replace(decision.cluster, **cluster)),  # type: ignore[arg-type]
        folder=plan.parent,
        overwrite=True,
    )
    return plan


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Two CPU ranks of one machine."""
    return plan_tiny(tmp_path / "plan", "zero2", world_size=2)


@pytest.fixture
def on_two_nodes(plan: Path) -> Path:
    return changed(plan, gpus_per_node=1)


@pytest.fixture
def on_gpus(plan: Path) -> Path:
    return changed(plan, gpu=gpu_preset("A100-80GB-SXM"))


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed"])
def test_what_is_printed_is_the_plans_line_with_the_flags_of_training(
    launcher: str, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, ["launch", "--plan", str(plan), "--launcher", launcher, "--print", *TRAIN]) == 0
    words = shlex.split(capsys.readouterr().out)
    written = [line for line in (plan.parent / "launch.txt").read_text().splitlines() if line.startswith(launcher)]
    head = shlex.split(written[0])
    assert words == [*head[: head.index("--data")], "--steps", "3", "--out", "run"]


def test_without_flags_of_training_it_is_the_example_of_the_plan(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, ["launch", "--plan", str(plan), "--print"]) == 0
    out = capsys.readouterr()
    assert out.out.strip() in (plan.parent / "launch.txt").read_text().splitlines()
    assert "launcher: torchrun (one machine" in out.err


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed", "slurm"])
def test_a_plan_of_another_name_is_the_one_that_is_trained(
    launcher: str, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = plan.rename(plan.with_name("two.json"))
    assert run_cli(monkeypatch, ["launch", "--plan", str(other), "--print", "--launcher", launcher, *TRAIN]) == 0
    assert f"scaling.train --plan {other} " in capsys.readouterr().out


def test_json_has_the_words_and_the_reason(
    on_two_nodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("gpu7 slots=1\ngpu9 slots=1\n")
    words = ["launch", "--plan", str(on_two_nodes), "--hostfile", str(hostfile), "--json"]
    assert run_cli(monkeypatch, [*words, *TRAIN]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["launcher"], read["nodes"], read["gpus"]) == ("deepspeed", 2, 2)
    assert read["commands"][0]["words"][:7] == [
        "deepspeed",
        "--num_gpus",
        "1",
        "--num_nodes",
        "2",
        "--hostfile",
        str(hostfile),
    ]
    assert run_cli(monkeypatch, [*words, "--launcher", "torchrun", *TRAIN]) == 0
    read = json.loads(capsys.readouterr().out)
    assert [command["host"] for command in read["commands"]] == ["gpu7", "gpu9"]
    assert ["--node_rank 1 --master_addr gpu7" in command["line"] for command in read["commands"]] == [False, True]


ONE_MACHINE = [
    (("--nodes", "2"), "2 nodes x 2 processes = 4 were asked for, but the plan is for gpus=2"),
    (("--gpus-per-node", "4"), "1 node x 4 processes = 4 were asked for"),
    (("--launcher", "python"), "--launcher python starts one process, but the plan is for gpus=2"),
    (("--node-rank", "1"), "--node-rank, but the plan is for one node"),
    (("--time", "10:00"), "--time, but torchrun starts it, not --launcher slurm; leave them out"),
    (("--launcher", "slurm", "--master-addr", "a"), "--master-addr, but Slurm names the nodes"),
    (("--launcher", "slurm", "--partition", "a b"), "--partition 'a b' has a space in it"),
    (("--nodes", "0"), "0 is not in the range x>=1"),
    (("--launcher", "slurm", "--submit", "--json"), "--submit starts a job, and --print and --json start nothing"),
    (("--submit",), "--submit hands a script to Slurm, but the launcher is torchrun"),
    (("--hostfile", "no-such-file"), "cannot read the host file no-such-file"),
    (("--master-port", "70000"), "--master-port 70000 must be from 1 to 65535"),
]


@pytest.mark.parametrize(("flags", "why"), ONE_MACHINE)
def test_what_is_wrong_is_one_line_and_nothing_starts(
    flags: tuple[str, ...], why: str, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, ["launch", "--plan", str(plan), *flags, *TRAIN]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith("error: ")] == told[-1:]
    assert why in told[-1]


SEVERAL_NODES = [
    ((), "the plan is for 2 nodes; give --master-addr"),
    (("--master-addr", "a"), "nothing says which one this is; give --node-rank, from 0 to 1"),
    (("--master-addr", "a", "--node-rank", "2"), "--node-rank 2, but the plan is for 2 nodes"),
    (("--launcher", "deepspeed"), "which deepspeed reads from a host file; give --hostfile"),
    (("--launcher", "accelerate", "--hostfile", "HOSTS"), "does not name"),
]


@pytest.mark.parametrize(("flags", "why"), SEVERAL_NODES)
def test_on_several_nodes_nothing_may_stay_open(
    flags: tuple[str, ...],
    why: str,
    on_two_nodes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    hosts = tmp_path / "hosts"
    hosts.write_text("gpu7 slots=1\ngpu9 slots=1\n")
    words = [str(hosts) if flag == "HOSTS" else flag for flag in flags]
    assert run_cli(monkeypatch, ["launch", "--plan", str(on_two_nodes), *words, *TRAIN]) == 2
    assert why in capsys.readouterr().err.splitlines()[-1]
    assert run_cli(monkeypatch, ["launch", "--plan", str(on_two_nodes), *words[:0], "--print", *TRAIN]) == 0


def test_a_host_file_tells_this_machine_its_rank(
    on_two_nodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(process, "run", lambda words, **options: started.append(list(words)) or 0)
    hosts = tmp_path / "hosts"
    hosts.write_text(f"gpu7 slots=1\n{socket.gethostname()} slots=1\n")
    words = ["launch", "--plan", str(on_two_nodes), "--launcher", "torchrun", "--hostfile", str(hosts), *TRAIN]
    assert run_cli(monkeypatch, words) == 0
    line = " ".join(started[0])
    assert "--nnodes 2 --node_rank 1 --master_addr gpu7 --master_port 29500" in line


def test_fewer_devices_than_ranks_are_refused(
    on_gpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert run_cli(monkeypatch, ["launch", "--plan", str(on_gpus), *TRAIN]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "the plan is for 2 of gpu=A100-80GB-SXM on this machine, but it has 1 CUDA devices" in told
    assert "plan again with --gpus 1 or --gpu cpu" in told
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert run_cli(monkeypatch, ["launch", "--plan", str(on_gpus), *TRAIN]) == 2
    assert "it has 0 CUDA devices; plan again with --gpu cpu" in capsys.readouterr().err.splitlines()[-1]


def test_deepspeed_is_told_the_visible_devices(
    on_gpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["launch", "--plan", str(on_gpus), "--launcher", "deepspeed", "--print", *TRAIN]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert run_cli(monkeypatch, words) == 0
    assert "deepspeed --include localhost:4,6 --module" in capsys.readouterr().out
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f6a,GPU-11c2")
    assert run_cli(monkeypatch, words) == 2
    assert "deepspeed takes numbers only" in capsys.readouterr().err


def test_a_job_of_slurm_with_less_than_the_plan_is_refused(
    on_gpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "1"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    words = ["launch", "--plan", str(on_gpus)]
    assert run_cli(monkeypatch, [*words, *TRAIN]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "the job 77 of Slurm has 1 node of 1 GPUs, but the plan is for gpus=2; ask for --nodes=1 --gpus-p" in told
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "0")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "²")  # no number
    assert run_cli(monkeypatch, [*words, *TRAIN]) == 2
    assert "the job 77 of Slurm has 0 GPUs, but" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    changed(on_gpus, gpus_per_node=1)
    assert run_cli(monkeypatch, [*words, "--node-rank", "0", "--master-addr", "a", *TRAIN]) == 2
    assert "ask for --nodes=2 --gpus-per-node=1" in capsys.readouterr().err.splitlines()[-1]


def test_nodes_that_torchrun_would_wait_for_are_refused(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PET_NNODES", "2")
    assert run_cli(monkeypatch, ["launch", "--plan", str(plan), *TRAIN]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "PET_NNODES=2 is set: torchrun would wait for other nodes, but the plan is for gpus=2 on one; unset" in told


def test_inside_a_rank_nothing_is_started(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert run_cli(monkeypatch, ["launch", "--plan", str(plan), *TRAIN]) == 2
    assert "LOCAL_RANK=0 is set: a launcher has started this process already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda text: text.replace("num_processes: 2", "num_processes: 8"),
            "has num_processes: 8, but the plan is for gpus=2",
        ),
        (lambda text: re.sub(r"deepspeed_config_file: .*", "deepspeed_config_file: gone.json", text), "gone.json"),
        (lambda text: "{", "which accelerate is started with"),
        (lambda text: "when: 2026-99-99", "month must be in 1..12"),
        (lambda text: "[" * 3000, "which accelerate is started with"),
        (lambda text: f"{text.partition('deepspeed_config:')[0]}deepspeed_config: 5", "DeepSpeed configuration None"),
        (lambda text: re.sub(r"deepspeed_config_file: .*", "deepspeed_config_file: [a]", text), "['a']"),
    ],
)
def test_an_accelerate_file_of_another_run_is_refused(
    change: object, why: str, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plan.parent / "accelerate.yaml"
    assert callable(change)
    path.write_text(change(path.read_text()))
    assert run_cli(monkeypatch, ["launch", "--plan", str(plan), "--launcher", "accelerate", *TRAIN]) == 2
    assert why in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--stpes", "3", "--out", "run"), "unknown argument '--stpes'; did you mean --steps?"),
        (("--steps", "3"), "out is missing"),
        (("--steps", "3", "--out", "run", "--plan", "other.json"), "and other.json after --; give it once"),
    ],
)
def test_wrong_flags_of_training_are_told_before_any_process(
    flags: tuple[str, ...], why: str, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, ["launch", "--plan", str(plan), "--", *flags]) == 2
    assert why in capsys.readouterr().err.splitlines()[-1]


def test_a_flag_of_training_before_the_dashes_is_told_where_it_belongs(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, ["launch", "--plan", str(plan), "--steps", "3"]) == 2
    assert "flags of training come after --" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused_or_replaced(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(process, "run", lambda words, **options: started.append(list(words)) or 0)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["launch", "--plan", str(plan), "--launcher", "deepspeed"]
        assert run_cli(monkeypatch, [*words, "--master-port", str(port), *TRAIN]) == 2
        assert f"port {port} is taken on this machine" in capsys.readouterr().err
        monkeypatch.setattr("scaling.launch.meeting.DEFAULT_PORT", port)
        assert run_cli(monkeypatch, [*words, *TRAIN]) == 0
    given = started[0][started[0].index("--master_port") + 1]
    assert given != str(port)


def test_a_plan_for_tensorflow_is_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mirrored = decide(
        load_model_spec("llama-demo"),
        cluster=replace(read_json(Decision, plan_tiny(tmp_path / "x", "ddp", world_size=2)).cluster),
        job=Job(seq_len=64, global_batch_size=4),
        fixed=FixedParts(strategy=StrategyName.MIRRORED),
        model="llama-demo",
    )
    write_plan(mirrored, folder=tmp_path / "tf")
    words = ["launch", "--plan", str(tmp_path / "tf" / "plan.json"), "--print"]
    assert run_cli(monkeypatch, [*words, *TRAIN]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("python -m scaling.tensorflow.train --plan ")
    assert "TensorFlow drives all devices from one process" in out.err
    assert run_cli(monkeypatch, [*words, "--launcher", "torchrun", *TRAIN]) == 2
    assert "the plan is for TensorFlow, which drives all 2 from one" in capsys.readouterr().err
    assert run_cli(monkeypatch, [*words, "--launcher", "slurm", *TRAIN]) == 0
    script = capsys.readouterr().out
    assert "trap 'kill -USR1 \"$launcher\"' USR1 TERM" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_submit_hands_the_script_to_sbatch_and_its_exit_code_on(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["launch", "--plan", str(plan), "--launcher", "slurm", "--submit", *TRAIN]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_cli(monkeypatch, words) == 2
    assert "sbatch is not installed" in capsys.readouterr().err
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/bash\nexec /bin/cat > {tmp_path}/job.sh\n")
    sbatch.chmod(0o755)
    assert run_cli(monkeypatch, words) == 0
    script = (tmp_path / "job.sh").read_text()
    assert capsys.readouterr().out == ""
    assert "--steps 3 --out run --resume auto &" in script  # or a job that is queued again would start anew
    sbatch.write_text("#!/bin/bash\nexit 1\n")
    assert run_cli(monkeypatch, words) == 1
