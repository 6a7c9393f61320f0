"""What nvidia-smi and torch answer on machines with GPUs; no test needs one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.doctor.commands import Answer
from scaling.doctor.torch_build import PROBE

H100 = "NVIDIA H100 80GB HBM3"
MIB_OF_H100 = 81559


def smi_gpu(
    name: str = H100,
    *,
    total: int = MIB_OF_H100,
    used: int = 4,
    mode: str = "Default",
    mig: str = "Disabled",
    process: str = "",
) -> str:
    """Return one device as nvidia-smi -q -x writes it (driver 580; what is not read is left out)."""
    return f"""
    <gpu id="00000000:18:00.0">
        <product_name>{name}</product_name>
        <mig_mode><current_mig>{mig}</current_mig><pending_mig>{mig}</pending_mig></mig_mode>
        <fb_memory_usage>
            <total>{total} MiB</total><reserved>500 MiB</reserved><used>{used} MiB</used><free>{total - used} MiB</free>
        </fb_memory_usage>
        <compute_mode>{mode}</compute_mode>
        <processes>{process}</processes>
    </gpu>"""


def smi_process(pid: int, name: str, used: str) -> str:
    return (
        f"<process_info><gpu_instance_id>N/A</gpu_instance_id><pid>{pid}</pid><type>C</type>"
        f"<process_name>{name}</process_name><used_memory>{used}</used_memory></process_info>"
    )


def smi(*gpus: str, driver: str = "580.65.06", cuda: str = "13.0") -> Answer:
    text = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
    <timestamp>Mon Nov 30 12:00:00 2026</timestamp>
    <driver_version>{driver}</driver_version>
    <cuda_version>{cuda}</cuda_version>
    <attached_gpus>{len(gpus)}</attached_gpus>{"".join(gpus)}
</nvidia_smi_log>"""
    return Answer(status=0, out=text)


def torch_sees(
    *names: str,
    mib: int = MIB_OF_H100,
    capability: tuple[int, int] = (9, 0),
    backends: Sequence[str] = ("gloo", "nccl"),
) -> Answer:
    devices = [{"name": name, "memory_bytes": mib * 2**20, "capability": capability} for name in names]
    architectures = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
    return Answer(
        status=0, out=json.dumps({"devices": devices, "architectures": architectures, "backends": list(backends)})
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Answers the commands that the doctor asks."""

    smi: Answer | None = None
    torch: Answer | None = None

    def __call__(self, command: Sequence[str]) -> Answer | None:
        if tuple(command) == PROBE:
            return self.torch
        return self.smi if command[0] == "nvidia-smi" else None
