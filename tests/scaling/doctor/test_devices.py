"""GPUs by canned answers of their driver and of torch: each thing that goes wrong is told once, with its fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.doctor import cores, devices, nvidia
from scaling.doctor.asked import Needs
from scaling.doctor.commands import Answer, ask
from scaling.doctor.findings import Finding
from scaling.doctor.torch_build import TorchBuild, ask_torch, package_folder, read_build, runs_on
from scaling.severity import Severity
from tests.scaling.doctor.nvidia_machines import H100, MIB_OF_H100, Machine, smi, smi_gpu, smi_process, torch_sees
from tests.scaling.doctor.plans import asked, cpu_plan, gpu_plan, told

FOR_CUDA = TorchBuild(version="2.13.0", cuda="13.0")
EIGHT = Machine(smi=smi(*[smi_gpu()] * 8), torch=torch_sees(*[H100] * 8))


@pytest.fixture(autouse=True)
def built_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "read_build", lambda _: FOR_CUDA)
    monkeypatch.setattr(devices, "is_device_present", lambda: True)


def found(machine: Machine, plan: Needs | None = None, **environ: str) -> list[Finding]:
    question = asked(plan, **environ)
    return list(devices.findings(devices.read(question, machine), question))


def test_a_node_that_has_what_the_plan_needs_has_no_findings_but_its_name() -> None:
    plan = gpu_plan("zero2", gpu="H100-80GB-SXM")
    assert found(EIGHT) == []
    assert found(EIGHT, plan) == []
    (name,) = found(EIGHT, gpu_plan("zero2"))
    assert name.severity is Severity.NOTE
    assert "the plan is for A100-80GB-SXM" in name.message


def test_driver_is_read_as_nvidia_smi_writes_it() -> None:
    machine = Machine(smi=smi(smi_gpu(used=70000, process=smi_process(4711, "python", "69000 MiB")), smi_gpu("L4")))
    driver = nvidia.read_driver(machine)
    assert driver is not None
    assert (driver.version, driver.cuda_version) == ("580.65.06", "13.0")
    assert [each.name for each in driver.gpus] == [H100, "L4"]
    assert driver.gpus[0].memory_bytes == MIB_OF_H100 * 2**20
    assert driver.gpus[0].processes == (nvidia.GpuProcess(pid=4711, name="python", used_bytes=69000 * 2**20),)


def test_a_device_without_a_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    without = Machine(torch=Answer(status=0, out='{"backends": ["gloo", "nccl"], "gpu_problem": "no NVIDIA driver"}'))
    assert "--gpus all" in told(found(without), "there is no nvidia-smi").fix
    assert told(found(without, gpu_plan()), "there is no nvidia-smi").severity is Severity.ERROR
    mismatch = Answer(status=18, out="Failed to initialize NVML: Driver/library version mismatch\n")
    assert "restart" in told(found(Machine(smi=mismatch)), "Driver/library version mismatch").fix
    monkeypatch.setattr(devices, "is_device_present", lambda: False)
    assert found(Machine()) == []  # a laptop


def test_torch_for_the_cpu_only_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "read_build", lambda _: TorchBuild(version="2.13.0+cpu"))
    machine = Machine(smi=smi(smi_gpu()), torch=torch_sees(backends=["gloo"]))
    text = "torch 2.13.0+cpu is built for the CPU only"
    assert told(found(machine), text).severity is Severity.WARNING
    assert "CUDA 13.0 or older" in told(found(machine), text).fix
    assert told(found(machine, gpu_plan(gpus=1)), text).severity is Severity.ERROR
    assert told(found(machine, cpu_plan()), text).severity is Severity.NOTE  # it is not needed


def test_a_driver_that_is_too_old_for_torch() -> None:
    old = smi(smi_gpu(), driver="535.104.05", cuda="12.2")
    finding = told(found(Machine(smi=old, torch=torch_sees()), gpu_plan(gpus=1)), "driver 535.104.05 runs CUDA 12.2")
    assert finding.severity is Severity.ERROR
    assert "update the driver" in finding.fix
    assert found(Machine(smi=old, torch=torch_sees(H100)), gpu_plan(gpus=1, gpu="H100-80GB-SXM")) == []  # it works


def test_a_gpu_of_amd_is_told_of_by_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "read_build", lambda _: TorchBuild(version="2.13.0", hip="7.1"))
    monkeypatch.setattr(devices, "is_device_present", lambda: False)
    sees = '{"devices": [{"name": "AMD Instinct MI300X", "memory_bytes": 206141652992, "capability": [9, 4]}], '
    machine = Machine(torch=Answer(status=0, out=sees + '"architectures": ["gfx942"], "backends": ["gloo", "nccl"]}'))
    assert found(machine) == []
    assert [each.severity for each in found(machine, gpu_plan(gpus=1))] == [Severity.NOTE]  # another name


def test_too_few_devices_and_hidden_ones() -> None:
    two_of_eight = Machine(smi=EIGHT.smi, torch=torch_sees(H100, H100))
    finding = told(found(two_of_eight, gpu_plan()), "the plan starts 8 ranks on a node, and 2 CUDA devices")
    assert "--gpus-per-node 2" in finding.fix
    hidden = Machine(smi=EIGHT.smi, torch=torch_sees())
    assert (
        told(found(hidden, gpu_plan(), CUDA_VISIBLE_DEVICES=""), "hides every GPU").fix == "unset CUDA_VISIBLE_DEVICES"
    )
    assert told(found(hidden, gpu_plan(), CUDA_VISIBLE_DEVICES=""), "no CUDA device can be used here")
    beyond = told(found(EIGHT, CUDA_VISIBLE_DEVICES="6,7,8"), "names device 8, and the driver has 8")
    assert beyond.fix.endswith("0,1,2,3,4,5,6,7")
    assert told(found(EIGHT, CUDA_VISIBLE_DEVICES="1,1"), "twice")
    chosen = told(found(EIGHT, gpu_plan(gpus=2), CUDA_VISIBLE_DEVICES="2,3"), "deepspeed --num_gpus passes it over")
    assert "--include localhost:2,3" in chosen.fix


def test_memory_that_others_use() -> None:
    busy = smi_gpu(used=78000, process=smi_process(4711, "python", "77000 MiB"))
    machine = Machine(smi=smi(busy, smi_gpu()), torch=torch_sees(H100, H100))
    assert "python (process 4711)" in told(found(machine), "GPU 0").message
    stops = told(found(machine, gpu_plan("zero3", gpus=2)), "are in use now, and the plan needs")
    assert stops.severity is Severity.ERROR
    assert stops.message.startswith("device 0")


def test_devices_that_are_too_small_or_smaller_than_planned() -> None:
    # 1.24e9 parameters with all their states are more than 16 GiB.
    small = Machine(smi=smi(smi_gpu(total=16384)), torch=torch_sees(H100, mib=16384))
    finding = told(found(small, gpu_plan("ddp", gpus=1)), "and the plan needs")
    assert finding.severity is Severity.ERROR
    assert "--gpu-memory-gib 16.0" in finding.fix
    less = Machine(smi=smi(*[smi_gpu(total=60000)] * 8), torch=torch_sees(*[H100] * 8, mib=60000))
    assert all(each.severity is not Severity.ERROR for each in found(less, gpu_plan("zero3")))
    assert [each for each in found(less, gpu_plan("zero3")) if "less than the" in each.message]


def test_arithmetic_kernels_and_modes() -> None:
    turing = Machine(smi=smi(smi_gpu("Tesla T4")), torch=torch_sees("Tesla T4", capability=(7, 5)))
    assert "--precision fp16" in told(found(turing, gpu_plan("zero3", gpus=1)), "has no bf16").fix
    future = Machine(smi=smi(smi_gpu("R100")), torch=torch_sees("R100", capability=(14, 0)))
    assert told(found(future), "no kernels for R100 (compute capability 14.0")
    prohibited = smi(smi_gpu(mode="Prohibited"))
    assert "-c DEFAULT" in told(found(Machine(smi=prohibited, torch=torch_sees(H100))), "Prohibited").fix
    assert told(found(Machine(smi=smi(smi_gpu(mig="Enabled")), torch=torch_sees(H100))), "MIG")


def test_torch_that_does_not_load_and_backends() -> None:
    broken = Answer(status=0, out='{"problem": "ImportError: libcudnn.so.9: cannot open shared object file"}')
    assert told(found(Machine(smi=smi(smi_gpu()), torch=broken)), "libcudnn.so.9").severity is Severity.ERROR
    crash = Answer(status=-11, out="", err="Fatal Python error: Segmentation fault")
    assert told(found(Machine(smi=smi(smi_gpu()), torch=crash)), "Segmentation fault")
    without = Machine(smi=smi(smi_gpu()), torch=torch_sees(H100, backends=["gloo"]))
    assert told(found(without, gpu_plan("zero3", gpus=1)), "has no nccl").severity is Severity.ERROR
    assert told(found(Machine(torch=torch_sees(backends=[])), cpu_plan()), "has no gloo").severity is Severity.ERROR


def test_several_nodes_and_cpu_ranks_without_cores() -> None:
    assert "on every node" in told(found(EIGHT, gpu_plan(gpus=16)), "the plan is for 2 nodes").fix
    many = cpu_plan("ddp", ranks=64)
    facts = devices.read(asked(many), Machine(torch=torch_sees(backends=["gloo"])))
    assert told(devices.findings(facts, asked(many)), f"64 CPU ranks on {facts.cores.usable} cores")


def test_a_container_with_less_time_than_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "SHARES", tmp_path)
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: range(64))
    assert cores.read_cores() == cores.Cores(bound=64, share=None)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores.read_cores().usable == 64
    (tmp_path / "cpu.max").write_text("450000 100000\n")
    assert (cores.read_cores().share, cores.read_cores().usable) == (4.5, 5)
    finding = told(found(EIGHT), "the time of 4.5 cores, and programs see 64")
    assert finding.fix == "export OMP_NUM_THREADS=5"
    assert found(EIGHT, OMP_NUM_THREADS="1") == []
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    for quota, share in (("-1", None), ("200000", 2.0)):
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
        assert cores.read_cores().share == share


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (("sm_80", "sm_90"), (8, 9), True),  # machine code of the same major version
        (("sm_80",), (9, 0), False),
        (("sm_80", "compute_80"), (9, 0), True),  # compiled when it is loaded
        (("sm_86",), (8, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_100", "sm_120"), (12, 1), True),
    ],
)
def test_kernels_run_as_the_programming_guide_says(
    architectures: tuple[str, ...], capability: tuple[int, int], runs: bool
) -> None:
    assert runs_on(architectures, capability) is runs


def test_the_installed_torch_is_read_and_asked() -> None:
    import torch

    build = read_build(package_folder("torch"))
    assert (build.version, build.cuda, build.hip) == (torch.__version__, torch.version.cuda, torch.version.hip)
    assert read_build(None).version is None
    sees = ask_torch(ask)
    assert (sees.problem, "gloo" in sees.backends) == ("", torch.distributed.is_gloo_available())


def test_devices_are_found_where_no_driver_tells_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "DEVICE_FILES", tmp_path)
    monkeypatch.setattr(nvidia, "PCI_DEVICES", tmp_path / "pci")
    assert not nvidia.is_device_present()
    device = tmp_path / "pci" / "0000:18:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x040300\n")  # the sound of a graphics card
    assert not nvidia.is_device_present()
    (device / "class").write_text("0x030200\n")
    assert nvidia.is_device_present()
