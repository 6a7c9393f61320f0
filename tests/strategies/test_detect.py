"""What this machine has, and the CPU as a stand-in for a small GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from strategies import detect
from strategies.errors import ClusterError
from strategies.units import GIB, MIB


def build(**changes):
    flags = {"gpu": "auto", "gpus": None, "gpus_per_node": None, "gpu_memory_gib": None, "host_memory_gib": None}
    return detect.build_cluster(**(flags | changes))


def memory_info() -> dict[str, int]:
    lines = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, value in lines}


def group(folder: Path, **files: object) -> Path:
    """Write the files of a control group; ``_`` stands for the point in their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")
    return folder


def test_host_memory_is_the_smaller_of_machine_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "CGROUPS", tmp_path)
    physical = detect.host_memory_bytes()  # no such file: the machine's own
    assert physical == memory_info()["MemTotal"]
    limit = tmp_path / "memory.max"
    for folder in (tmp_path, tmp_path / "memory"):
        group(folder, memory_max="max", memory_limit_in_bytes=9223372036854771712)  # as the kernel says "no limit"
    assert detect.host_memory_bytes() == physical
    monkeypatch.setattr(detect, "OWN_CGROUPS", limit.with_name("absent"))
    limit.write_text(f"{64 * MIB}\n")
    assert detect.host_memory_bytes() == 64 * MIB


@pytest.mark.parametrize(
    ("line", "root", "files"),
    [
        ("0::/slurm/job_7/step_0", ".", ("memory_max", "memory_current", "")),
        ("4:memory:/slurm/job_7/step_0", "memory", ("memory_limit_in_bytes", "memory_usage_in_bytes", "total_")),
    ],
)
def test_memory_is_that_of_the_group_with_the_least_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, root: str, files: tuple[str, str, str]
) -> None:
    limit, used, prefix = files
    own = tmp_path / "own"
    own.write_text(f"strange\n9:name=systemd:/\n1:cpu,cpuacct:/elsewhere\n{line}\n")
    monkeypatch.setattr(detect, "CGROUPS", tmp_path)
    monkeypatch.setattr(detect, "OWN_CGROUPS", own)
    job = tmp_path / root / "slurm" / "job_7"
    # The step may take 900 MiB, its job 1000 MiB, of which other steps have taken 600: files are not counted.
    cached = f"anon 1\n{prefix}inactive_file {30 * MIB}\n{prefix}active_file {60 * MIB}\nslab_reclaimable {10 * MIB}"
    group(job / "step_0", **{limit: 900 * MIB, used: 200 * MIB, "memory_stat": f"anon {200 * MIB}"})
    group(job, **{limit: 1000 * MIB, used: 700 * MIB, "memory_stat": cached})
    found = detect.host_memory()
    assert (found.limit_bytes, found.used_bytes, found.free_bytes) == (1000 * MIB, 600 * MIB, 400 * MIB)
    assert found.of == str(job)
    assert detect.host_memory_bytes() == 900 * MIB


def test_memory_of_a_machine_without_limits_is_what_the_kernel_calls_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "CGROUPS", tmp_path)
    found, info = detect.host_memory(), memory_info()
    assert (found.limit_bytes, found.of) == (info["MemTotal"], "this machine")
    assert found.free_bytes == pytest.approx(info["MemAvailable"], abs=GIB)  # others take and free meanwhile
    monkeypatch.setattr(detect, "MEMORY_INFO", tmp_path / "absent")
    assert detect.host_memory().used_bytes == 0  # a kernel that does not tell


def test_cpu_budget_is_shared_by_the_ranks() -> None:
    cluster = build(gpu="cpu", gpus=4)
    assert cluster.gpu.is_cpu
    assert cluster.gpu.memory_bytes == detect.host_memory_bytes() // 4
    assert cluster.num_nodes == 1


def test_memory_flag_overrides_cpu_and_preset() -> None:
    assert build(gpu="cpu", gpus=2, gpu_memory_gib=0.5).gpu.memory_bytes == GIB // 2
    overridden = build(gpu="A100-80GB-SXM", gpus=2, gpu_memory_gib=40)
    assert overridden.gpu.memory_bytes == 40 * GIB
    assert overridden.gpu.bf16_flops_per_s == 312e12


def test_auto_reads_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\n"

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[0] == "nvidia-smi"
        return subprocess.CompletedProcess(command, 0, stdout=answer, stderr="")

    monkeypatch.setattr(detect.subprocess, "run", run)
    cluster = build()
    assert (cluster.gpus, cluster.gpu.name, cluster.gpu.memory_bytes) == (2, "NVIDIA H100 80GB HBM3", 81559 * MIB)
    assert cluster.host_memory_bytes == detect.host_memory_bytes()


def test_auto_without_driver_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(detect.subprocess, "run", run)
    assert build().gpu.is_cpu


def test_presets_fill_nodes_of_eight() -> None:
    assert build(gpu="H100-80GB-SXM", gpus=64).num_nodes == 8
    with pytest.raises(ClusterError, match=r"gpus=12 is not a multiple of gpus_per_node=8"):
        build(gpu="H100-80GB-SXM", gpus=12)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("gpus", 0), ("gpus", -2), ("gpus_per_node", 0), ("gpu_memory_gib", 0.0), ("gpu_memory_gib", float("nan"))],
)
def test_impossible_sizes_are_refused(flag: str, value: float) -> None:
    with pytest.raises(ClusterError, match=f"--{flag.replace('_', '-')} {value}"):
        build(**{"gpu": "cpu", flag: value})


def test_locked_memory_is_the_process_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    monkeypatch.setattr(detect, "PROCESS_STATUS", status)
    # 64 KiB and unlimited are what `bash -c "ulimit -l 64; ..."` and most containers give.
    program = "from strategies import detect; print(detect.locked_memory_bytes())"
    without = (
        f"from pathlib import Path; from strategies import detect; detect.PROCESS_STATUS = Path({str(status)!r}); "
    )
    status.write_text("Name:\tpython\nCapEff:\t0000000000000000\n")
    shown = subprocess.run(
        ["bash", "-c", f'ulimit -l 64; exec {sys.executable} -c "{without}{program}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == str(64 * 1024)
    status.write_text("Name:\tpython\nCapEff:\t00000000a80c65fb\n")  # bit 14 is set
    shown = subprocess.run(
        ["bash", "-c", f'ulimit -l 64; exec {sys.executable} -c "{without}{program}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == "None"


@pytest.mark.parametrize(
    ("line", "root", "events"),
    [("0::/job/step", ".", "memory_events"), ("4:memory:/job/step", "memory", "memory_oom_control")],
)
def test_processes_ended_for_lack_of_memory_are_those_of_the_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, root: str, events: str
) -> None:
    own = tmp_path / "own"
    own.write_text(f"{line}\n")
    monkeypatch.setattr(detect, "CGROUPS", tmp_path)
    monkeypatch.setattr(detect, "OWN_CGROUPS", own)
    machine = tmp_path / "vmstat"
    machine.write_text("pgfault 17\noom_kill 5\n")
    monkeypatch.setattr(detect, "KERNEL_COUNTERS", machine)
    assert detect.oom_kills() == 5  # groups without the file, as the root of version 2
    group(tmp_path / root / "job", **{events: "oom 3\noom_kill 1"})
    group(tmp_path / root / "job" / "step", **{events: "oom 2\noom_kill 2\noom_group_kill 0"})
    assert detect.oom_kills() == 2
    monkeypatch.setattr(detect, "CGROUPS", tmp_path / "absent")
    monkeypatch.setattr(detect, "KERNEL_COUNTERS", tmp_path / "absent")
    assert detect.oom_kills() is None
