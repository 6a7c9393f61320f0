"""Memory, limits and disks: what is read here, and what is said about machines that have less."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from scaling.doctor import disk, host, limits, nvme, shared_memory
from scaling.doctor.asked import PIN_BACKEND
from scaling.doctor.processes import Process, largest_processes, read_process
from scaling.doctor.space import Space, existing, read_space, why_not_writable
from scaling.severity import Severity
from strategies.detect import HostMemory
from strategies.units import GIB, KIB, MIB
from tests.scaling.doctor.plans import CPU, NVME, asked, cpu_plan, gpu_plan, told

ROOMY = Space(size_bytes=900 * GIB, free_bytes=800 * GIB, has_free_files=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """What statvfs says of a disk."""

    f_bavail: int
    f_blocks: int = 10**6
    f_frsize: int = 4096
    f_files: int = 10**6
    f_favail: int = 10**5


def host_facts(*, limit_gib: float, used_gib: float = 0.0) -> host.HostFacts:
    memory = HostMemory(limit_bytes=round(limit_gib * GIB), used_bytes=round(used_gib * GIB), of="/sys/fs/cgroup/job")
    return host.HostFacts(memory=memory, largest=(Process(pid=4711, name="python", resident_bytes=50 * GIB),))


def test_host_memory_that_the_plan_needs() -> None:
    plan = gpu_plan("zero2", offload_optimizer=CPU)
    assert plan.host_bytes is not None
    needed_gib = plan.host_bytes / GIB
    assert list(host.findings(host_facts(limit_gib=needed_gib + 1), plan)) == []
    never = told(host.findings(host_facts(limit_gib=needed_gib - 1), plan), "exit code -9")
    assert never.severity is Severity.ERROR
    assert "/sys/fs/cgroup/job" in never.message
    assert "pinned buffers of offloaded states" in never.message
    assert f"--host-memory-gib {needed_gib - 1:.1f}" in never.fix
    taken = told(host.findings(host_facts(limit_gib=needed_gib + 1, used_gib=50), plan), "are in use now")
    assert taken.severity is Severity.ERROR
    assert "python, process 4711: 50.00 GiB" in taken.fix


def test_cpu_ranks_hold_in_ram_what_they_would_on_a_device() -> None:
    one, four = cpu_plan("ddp", ranks=1), cpu_plan("ddp", ranks=4)
    assert one.host_bytes is not None
    assert four.host_bytes is not None
    assert one.device_bytes is not None
    assert one.host_bytes > one.device_bytes
    assert four.host_bytes > 3 * one.host_bytes
    assert "--gpus" in told(host.findings(host_facts(limit_gib=0.5), four), "exit code -9").fix


def test_almost_full_and_strict_memory_without_a_plan() -> None:
    assert list(host.findings(host_facts(limit_gib=64), None)) == []
    assert told(host.findings(host_facts(limit_gib=64, used_gib=63), None), "almost full").severity is Severity.WARNING
    strict = replace(host_facts(limit_gib=64), overcommit="2")
    assert told(host.findings(strict, None), "overcommit_memory=2").fix == "sudo sysctl vm.overcommit_memory=0"


def test_largest_processes_are_this_machines() -> None:
    found = largest_processes(5)
    assert [each.resident_bytes for each in found] == sorted((each.resident_bytes for each in found), reverse=True)
    assert os.getpid() not in [each.pid for each in found]
    own = read_process(Path(f"/proc/{os.getpid()}"))
    assert own is not None
    status = Path("/proc/self/status").read_text()
    resident_kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert own.resident_bytes == pytest.approx(resident_kib * KIB, rel=0.1)


def test_shared_memory_of_a_container() -> None:
    small = shared_memory.SharedMemory(space=Space(size_bytes=64 * MIB, free_bytes=60 * MIB, has_free_files=True))
    assert "--shm-size=1g" in told(shared_memory.findings(small, None), "/dev/shm has 64.00 MiB").fix
    assert list(shared_memory.findings(small, cpu_plan("ddp", ranks=1))) == []  # one rank passes nothing
    full = shared_memory.SharedMemory(space=Space(size_bytes=GIB, free_bytes=MIB, has_free_files=True))
    assert told(shared_memory.findings(full, None), "almost full")
    gone = shared_memory.SharedMemory(space=None)
    assert told(shared_memory.findings(gone, gpu_plan()), "there is no /dev/shm").severity is Severity.ERROR


def test_files_that_ended_programs_left_in_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, open_, other = (tmp_path / name for name in ("nccl-AbCdEf", "torch_12_34", "mine"))
    for path in (left, open_, other):
        path.write_bytes(bytes(20 * MIB))
    with open_.open("rb"):
        facts = shared_memory.read(tmp_path)
    assert facts.left == (left,)
    finding = told(shared_memory.findings(facts, None), "left 1 files in /dev/shm, 20.00 MiB")
    assert finding.fix == "rm /dev/shm/nccl-*, while nothing trains here"
    left.unlink()
    assert shared_memory.read(tmp_path / "absent").left == ()


def some_limits(**changed: object) -> limits.Limits:
    roomy = limits.Limits(
        locked_bytes=None,
        ignores_locked=False,
        open_files=2**16,
        most_open_files=2**20,
        file_bytes=None,
        address_bytes=None,
    )
    return replace(roomy, **changed)  # type: ignore[arg-type]


def test_locked_memory_counts_for_plans_that_lock_some() -> None:
    little = some_limits(locked_bytes=64 * KIB)
    assert told(limits.findings(little, None, {}), "ulimit -l is 64.00 KiB").severity is Severity.WARNING
    nvme_plan = gpu_plan("zero3", offload_optimizer=NVME, offload_param=NVME)
    assert told(limits.findings(little, nvme_plan, {}), "a rank of the plan locks").severity is Severity.ERROR
    offloaded = gpu_plan("zero2", offload_optimizer=CPU)
    assert list(limits.findings(little, offloaded, {})) == []  # CUDA's driver asks for no limit
    native = told(limits.findings(little, offloaded, {PIN_BACKEND: "native"}), "a rank of the plan locks")
    assert "ulimit -l unlimited" in native.fix
    assert list(limits.findings(some_limits(locked_bytes=8 * MIB), None, {})) == []  # the kernel's own
    root = some_limits(locked_bytes=64 * KIB, ignores_locked=True)
    for plan in (None, nvme_plan):
        assert told(limits.findings(root, plan, {}), "does not bind here, by CAP_IPC_LOCK").severity is Severity.NOTE
    fabric = some_limits(locked_bytes=8 * MIB, has_infiniband=True)
    assert "InfiniBand" in told(limits.findings(fabric, gpu_plan(), {}), "ulimit -l").message


def test_other_limits() -> None:
    few = told(limits.findings(some_limits(open_files=1024), None, {}), "ulimit -n is 1024")
    assert few.fix == "ulimit -n 1048576"
    short = some_limits(file_bytes=GIB)
    assert told(limits.findings(short, None, {}), "ulimit -f is 1.00 GiB").severity is Severity.WARNING
    assert told(limits.findings(short, gpu_plan(), {}), "and the plan's model is 2.30 GiB").severity is Severity.ERROR
    assert told(limits.findings(some_limits(address_bytes=64 * GIB), gpu_plan(), {}), "ulimit -v")


def test_limits_are_those_of_this_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts = limits.read()
    assert (facts.open_files, facts.most_open_files) == (soft, hard)


def test_a_full_disk_is_an_error_where_runs_write() -> None:
    full = read_space(Path("/"), lambda _: FileSystem(f_bavail=3))
    assert full is not None
    assert full.free_bytes == 3 * 4096

    def look(path: Path) -> tuple[Space | None, str]:
        return (full, "") if path.name in ("out", "tmp") else (ROOMY, "")

    found = list(disk.findings(disk.read(asked(out=Path("/data/out"), TMPDIR="/tmp"), look), None))
    assert [each.severity for each in found] == [Severity.ERROR, Severity.WARNING]
    assert found[0].message == "run folder, /data/out: the disk is full, 12.00 KiB are free"
    assert "--out" in found[0].fix
    assert "TMPDIR" in found[1].fix
    lost = disk.read(asked(TMPDIR="/no/such/folder"), lambda _: (ROOMY, ""))
    assert "mkdir -p /no/such/folder" in told(disk.findings(lost, None), "/no/such/folder, does not exist").fix
    used_up = read_space(Path("/"), lambda _: FileSystem(f_bavail=10**6, f_favail=0))
    found = list(disk.findings(disk.read(asked(out=Path("/data/out")), lambda _: (used_up, "")), None))
    assert "df -i" in found[0].message


def test_room_for_the_model_and_its_checkpoints() -> None:
    plan = gpu_plan()
    model, training = plan.checkpoint_bytes
    assert model == 2 * plan.decision.num_params  # bf16

    def told_with(free: int) -> list[str]:
        space = replace(ROOMY, free_bytes=free)
        return [str(each.severity) for each in disk.findings(disk.read(asked(plan), lambda _: (space, "")), plan)]

    assert told_with(model - 1) == ["error"]
    assert told_with(model + training) == ["warning"]
    assert told_with(model + 3 * training) == []


def test_what_cannot_be_written_is_found_by_writing(tmp_path: Path) -> None:
    assert why_not_writable(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        assert why_not_writable(tmp_path) == "File too large"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert why_not_writable(tmp_path / "absent") == "No such file or directory"
    assert existing(tmp_path / "a" / "b") == tmp_path
    assert disk.look(Path(__file__) / "run")[1] == "is a file, not a folder"


def test_nvme_folder_that_is_lost_full_slow_or_in_ram(tmp_path: Path) -> None:
    plan = gpu_plan("zero3", offload_optimizer=NVME, offload_param=NVME)
    lost = nvme.read(tmp_path / "gone")
    assert told(nvme.findings(lost, plan), "it does not exist").fix.startswith(f"mkdir -p {tmp_path / 'gone'}")
    assert told(nvme.findings(None, plan), "no folder was named").fix == "--nvme-path DIR"
    assert list(nvme.findings(None, cpu_plan())) == []
    fast = nvme.Speed(write_bytes_per_s=3e9, read_bytes_per_s=6e9, is_direct=True)
    good = nvme.NvmeFacts(path=tmp_path, space=ROOMY, file_system="ext4", speed=fast)
    assert list(nvme.findings(good, plan)) == []
    small = replace(good, space=replace(ROOMY, free_bytes=plan.nvme_bytes - 1))
    assert told(nvme.findings(small, plan), "are free, and the plan rests").severity is Severity.ERROR
    slow = replace(good, speed=replace(fast, write_bytes_per_s=1e8, read_bytes_per_s=1e8))
    finding = told(nvme.findings(slow, plan), "slower than an NVMe disk")
    seconds = 2 * plan.nvme_bytes / 1e8
    assert f"{seconds // 60:.0f} min" in finding.message
    assert told(nvme.findings(replace(good, file_system="tmpfs"), plan), "host memory").severity is Severity.ERROR


def test_speed_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    facts = nvme.read(tmp_path)
    assert facts.speed is not None
    assert facts.speed.write_bytes_per_s > 0
    assert facts.speed.read_bytes_per_s > 0
    assert list(tmp_path.iterdir()) == []
    assert nvme.file_system_of(Path("/proc/self")) == "proc"
