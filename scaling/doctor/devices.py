"""GPUs: the driver, the build of torch, what else uses them, and whether the plan's ranks find what they need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaling.doctor import visible
from scaling.doctor.asked import Asked, Needs
from scaling.doctor.commands import Ask, ask
from scaling.doctor.cores import Cores, read_cores
from scaling.doctor.findings import Area, Examined, Finding, error, error_if, examined, note, warning
from scaling.doctor.nvidia import Driver, NvidiaGpu, is_device_present, read_driver
from scaling.doctor.plan_devices import plan_findings
from scaling.doctor.torch_build import TorchBuild, TorchSees, ask_torch, package_folder, read_build, runs_on
from strategies.units import GIB, format_bytes

BUSY_BYTES = GIB
"""Of one GPU: the driver takes some hundred MiB for itself, a program of CUDA's its context besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What is here."""

    driver: Driver | None
    """None without nvidia-smi."""
    is_present: bool
    """Whether an NVIDIA device is in the machine."""
    build: TorchBuild
    sees: TorchSees | None
    """None where torch was not asked: its import takes seconds."""
    cores: Cores


def examine(asked: Asked) -> Examined:
    facts = read(asked, ask)
    driver = facts.driver or Driver()
    return examined(
        Area.DEVICES,
        findings(facts, asked),
        cpu_cores=facts.cores.usable,
        gpus=", ".join(_counted([each.name for each in driver.gpus])) or "none",
        gpu_memory_bytes=min((each.memory_bytes for each in driver.gpus), default=None),
        driver=driver.version or None,
        driver_cuda=driver.cuda_version or None,
        torch=facts.build.version,
        torch_cuda=facts.build.cuda or facts.build.hip,
        torch_devices=len(facts.sees.devices) if facts.sees else None,
    )


def read(asked: Asked, ask: Ask) -> DeviceFacts:
    """Return what is here. torch is started where it could see a GPU, or where the plan's ranks must meet by it."""
    driver, build = read_driver(ask), read_build(package_folder("torch"))
    has_gpus = bool(driver and driver.gpus) or build.hip is not None
    must_meet = asked.plan is not None and not asked.plan.runs_tensorflow
    return DeviceFacts(
        driver=driver,
        is_present=is_device_present(),
        build=build,
        sees=ask_torch(ask) if build.version and (must_meet or (has_gpus and build.for_gpus)) else None,
        cores=read_cores(),
    )


def findings(facts: DeviceFacts, asked: Asked) -> Iterator[Finding]:
    """Yield what is wrong with the driver and torch, then what the plan lacks."""
    plan = asked.plan
    on_gpus = plan is not None and plan.on_gpus
    if facts.build.version is None and not (plan and plan.runs_tensorflow):
        yield error("torch is not installed", "pip install memory-scaling")
    yield from _driver(facts, on_gpus=on_gpus)
    yield from _torch(facts, plan)
    for gpu in facts.driver.gpus if facts.driver else ():
        yield from _gpu(gpu, on_gpus=on_gpus)
    yield from visible.findings(asked.environ, facts.driver, plan)
    if facts.cores.usable < facts.cores.bound and "OMP_NUM_THREADS" not in asked.environ:
        yield warning(
            f"this container gets the time of {facts.cores.share:.2g} cores, and programs see {facts.cores.bound} and "
            f"start as many threads",
            f"export OMP_NUM_THREADS={max(1, facts.cores.usable // (plan.ranks if plan else 1))}",
        )
    if plan is not None:
        yield from plan_findings(facts.driver, facts.sees, facts.build, plan, cores=facts.cores.usable)


def _driver(facts: DeviceFacts, *, on_gpus: bool) -> Iterator[Finding]:
    if facts.driver is None and facts.is_present:
        yield error_if(
            on_gpus,
            "an NVIDIA device is in this machine, but there is no nvidia-smi: its driver is missing here",
            "install NVIDIA's driver; in a container start it with --gpus all (NVIDIA Container Toolkit)",
        )
    if facts.driver and facts.driver.problem:
        is_stale = "version mismatch" in facts.driver.problem
        fix = (
            "the driver was updated while loaded: restart the machine"
            if is_stale
            else "restart the machine, or install the driver again (sudo dmesg | grep -i nvrm says why it fails)"
        )
        yield error_if(on_gpus, f"nvidia-smi fails: {facts.driver.problem}", fix)


def _torch(facts: DeviceFacts, plan: Needs | None) -> Iterator[Finding]:
    driver, build = facts.driver, facts.build
    on_gpus = plan is not None and plan.on_gpus
    if build.version is None or (plan and plan.runs_tensorflow):
        return
    if (facts.is_present or (driver and driver.gpus)) and not build.for_gpus:
        newest = f" {driver.cuda_version} or older" if driver and driver.cuda_version else ""
        told = error if on_gpus else note if plan else warning
        yield told(
            f"torch {build.version} is built for the CPU only, and an NVIDIA device is here",
            f"pip uninstall -y torch, then install the build for CUDA{newest} (pytorch.org, Get Started)",
        )
    works = facts.sees is not None and bool(facts.sees.devices)  # NVIDIA's compatibility packages bridge versions
    if driver and build.cuda and not works and _major(build.cuda) > _major(driver.cuda_version or build.cuda):
        yield error_if(
            on_gpus,
            f"torch {build.version} is built for CUDA {build.cuda}, but driver {driver.version} runs CUDA "
            f"{driver.cuda_version} at most",
            f"update the driver, or install a torch for CUDA {driver.cuda_version} or older",
        )
    elif facts.sees and facts.sees.gpu_problem and (on_gpus or facts.is_present):
        yield error_if(
            on_gpus,
            f"torch {build.version} finds no GPU: {_first_line(facts.sees.gpu_problem)}",
            "python -c 'import torch; torch.cuda.init()' shows the whole of it; update the driver, or reinstall torch",
        )
    if facts.sees and facts.sees.problem:
        yield error(
            f"torch {build.version} does not load: {_first_line(facts.sees.problem)}",
            f"python -c 'import torch' shows the whole of it; pip install --force-reinstall torch=={build.version}",
        )
    yield from _architectures(facts, on_gpus=on_gpus)


def _architectures(facts: DeviceFacts, *, on_gpus: bool) -> Iterator[Finding]:
    if facts.sees is None or facts.build.cuda is None:  # names of AMD's do not tell by themselves
        return
    for device in dict.fromkeys(facts.sees.devices):
        if not runs_on(facts.sees.architectures, device.capability):
            yield error_if(
                on_gpus,
                f"torch {facts.build.version} has no kernels for {device.name} (compute capability "
                f"{'.'.join(map(str, device.capability))}; it has {', '.join(facts.sees.architectures)})",
                "install a newer torch for a new GPU, an older one for an old GPU",
            )


def _gpu(gpu: NvidiaGpu, *, on_gpus: bool) -> Iterator[Finding]:
    if gpu.used_bytes > BUSY_BYTES:
        who = ", ".join(f"{each.name} (process {each.pid})" for each in gpu.processes[:3]) or "processes not shown here"
        yield warning(
            f"GPU {gpu.index} ({gpu.name}): {format_bytes(gpu.used_bytes)} of {format_bytes(gpu.memory_bytes)} are in "
            f"use by {who}",
            "end them with kill PID, or leave it out: CUDA_VISIBLE_DEVICES with the other devices' numbers",
        )
    if gpu.compute_mode == "Prohibited":
        yield error_if(
            on_gpus,
            f"GPU {gpu.index} ({gpu.name}) is in compute mode Prohibited: no program may use it",
            f"sudo nvidia-smi -i {gpu.index} -c DEFAULT",
        )
    if gpu.is_split:
        yield warning(
            f"GPU {gpu.index} ({gpu.name}) is split into instances (MIG): a process sees one of them, and ranks on two "
            f"instances of one GPU cannot meet by NCCL",
            f"train on one rank, or sudo nvidia-smi -i {gpu.index} -mig 0",
        )


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300]


def _major(version: str) -> int:
    head = version.split(".")[0]
    return int(head) if head.isdigit() else 0


def _counted(names: list[str]) -> list[str]:
    return [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
