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


def test_host_memory_is_the_smaller_of_machine_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(detect, "CGROUP_LIMITS", (limit,))
    physical = detect.host_memory_bytes()  # no such file: the machine's own
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert physical == int(meminfo["MemTotal"].split()[0]) * 1024
    limit.write_text(f"{64 * MIB}\n")
    assert detect.host_memory_bytes() == 64 * MIB
    limit.write_text("max\n")
    assert detect.host_memory_bytes() == physical


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
