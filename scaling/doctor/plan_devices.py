"""The plan's devices beside those of this machine: how many, how large, which arithmetic, and how ranks meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaling.doctor.asked import Needs
from scaling.doctor.findings import Finding, error, note, warning
from scaling.doctor.nvidia import Driver
from scaling.doctor.torch_build import TorchBuild, TorchSees
from strategies.units import format_bytes

BF16_CAPABILITY = (8, 0)
"""Ampere: the first that multiplies in bf16 (CUDA C++ Programming Guide, "Compute Capabilities")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    name: str
    memory_bytes: int
    used_bytes: int


def plan_findings(
    driver: Driver | None, sees: TorchSees | None, build: TorchBuild, plan: Needs, *, cores: int
) -> Iterator[Finding]:
    """Yield where the plan asks for other devices than there are."""
    if plan.num_nodes > 1:
        yield note(
            f"the plan is for {plan.num_nodes} nodes with {plan.ranks} ranks each; this is one machine",
            "run scaling doctor on every node",
        )
    devices = _devices(driver, sees)
    if plan.on_gpus:
        yield from _count(devices, plan)
        yield from _memory(devices, plan)
        yield from _arithmetic(sees, plan)
    else:
        yield from _on_cpu(devices, plan, cores=cores)
    if not plan.on_gpus or (devices and build.for_gpus):  # else what is missing has been said
        yield from _backend(sees, plan)


def _devices(driver: Driver | None, sees: TorchSees | None) -> list[_Device]:
    """Return the devices that a rank would get: torch's where it was asked, with what the driver says is taken.

    torch leaves out what CUDA_VISIBLE_DEVICES hides, and may number devices in another order. Then the fullest one of
    a name stands for all of that name: a guess on the safe side.
    """
    reported = driver.gpus if driver else ()
    if sees is None or sees.problem or sees.gpu_problem:
        return [
            _Device(name=each.name, memory_bytes=each.memory_bytes, used_bytes=each.used_bytes) for each in reported
        ]
    same_order = [each.name for each in reported] == [each.name for each in sees.devices]
    found = []
    for index, device in enumerate(sees.devices):
        candidates = [reported[index]] if same_order else [each for each in reported if each.name == device.name]
        used = max((each.used_bytes for each in candidates), default=0)
        found.append(_Device(name=device.name, memory_bytes=device.memory_bytes, used_bytes=used))
    return found


def _count(devices: list[_Device], plan: Needs) -> Iterator[Finding]:
    gpu = plan.decision.cluster.gpu.name
    if not devices:
        yield error(
            f"the plan is for {plan.ranks} x {gpu} on a node, and no CUDA device can be used here",
            "run on a machine that has them, or plan again with --gpu cpu",
        )
    elif len(devices) < plan.ranks:
        yield error(
            f"the plan starts {plan.ranks} ranks on a node, and {len(devices)} CUDA devices can be used here",
            f"plan again with --gpus-per-node {len(devices)}, or make the others visible (CUDA_VISIBLE_DEVICES)",
        )
    elif any(gpu.split("-")[0].casefold() not in each.name.casefold() for each in devices[: plan.ranks]):
        names = ", ".join(dict.fromkeys(each.name for each in devices[: plan.ranks]))
        yield note(f"the plan is for {gpu}; the driver calls the devices here {names}", "plan here with --gpu auto")


def _memory(devices: list[_Device], plan: Needs) -> Iterator[Finding]:
    needed, planned = plan.device_bytes, plan.decision.cluster.gpu.memory_bytes
    for index, device in enumerate(devices[: plan.ranks]):
        where = f"device {index} ({device.name}) has {format_bytes(device.memory_bytes)}"
        if needed is not None and device.memory_bytes < needed:
            yield error(
                f"{where}, and the plan needs {format_bytes(needed)} of each",
                f"plan again with --gpu-memory-gib {device.memory_bytes / 2**30:.1f}",
            )
        elif needed is not None and device.memory_bytes - device.used_bytes < needed:
            yield error(
                f"{where}, of which {format_bytes(device.used_bytes)} are in use now, and the plan needs "
                f"{format_bytes(needed)} of each",
                "end what uses it (nvidia-smi shows it), or leave the device out with CUDA_VISIBLE_DEVICES",
            )
        elif device.memory_bytes < planned:
            yield warning(
                f"{where}, less than the {format_bytes(planned)} that the plan was made for",
                "plan again here with --gpu auto",
            )


def _arithmetic(sees: TorchSees | None, plan: Needs) -> Iterator[Finding]:
    precision = plan.decision.job.precision
    if sees is None or not precision.is_bf16:
        return
    for device in dict.fromkeys(sees.devices[: plan.ranks]):
        if device.capability < BF16_CAPABILITY:
            yield error(
                f"precision={precision}, but {device.name} has no bf16 (compute capability "
                f"{'.'.join(map(str, device.capability))})",
                "plan again with --precision fp16 or --precision fp32",
            )


def _on_cpu(devices: list[_Device], plan: Needs, *, cores: int) -> Iterator[Finding]:
    if devices:
        yield note(
            f"the plan is for CPU ranks, and {len(devices)} x {devices[0].name} is here", "plan again with --gpu auto"
        )
    if plan.ranks > cores:
        yield warning(
            f"the plan starts {plan.ranks} CPU ranks on {cores} cores: they wait for each other at every collective",
            f"plan again with --gpus {cores}, or give the process more cores (taskset, cpuset)",
        )


def _backend(sees: TorchSees | None, plan: Needs) -> Iterator[Finding]:
    """Ranks on GPUs meet by NCCL, on CPUs by gloo; one rank makes a group too (scaling/launch_env.py)."""
    backend = "nccl" if plan.on_gpus else "gloo"
    if sees is None or sees.problem or plan.runs_tensorflow or backend in sees.backends:
        return
    yield error(
        f"this torch has no {backend}, by which the plan's ranks meet (it has {', '.join(sees.backends) or 'none'})",
        "install a build of torch for Linux with distributed support, for CUDA where the plan is for GPUs",
    )
