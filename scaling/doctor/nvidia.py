"""NVIDIA devices as their driver reports them, and whether there are any that it does not report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from scaling.doctor.commands import Ask
from strategies.units import MIB

COMMAND = ("nvidia-smi", "-q", "-x")
DEVICE_FILES = Path("/dev")
PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
DISPLAY_CLASS = "0x03"
"""PCI vendor of NVIDIA, and the class of graphics and compute devices (pci.ids)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    used_bytes: int | None
    """None where the driver does not tell, as in containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaGpu:
    """One device, in the driver's order."""

    index: int
    name: str
    memory_bytes: int
    used_bytes: int
    """By whomever, the driver's own share included."""
    compute_mode: str = "Default"
    is_split: bool = False
    """Into instances (MIG)."""
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What nvidia-smi says."""

    version: str = ""
    cuda_version: str = ""
    """The newest CUDA that it runs."""
    gpus: tuple[NvidiaGpu, ...] = ()
    problem: str = ""
    """Why it reports nothing; empty where it does."""


def read_driver(ask: Ask) -> Driver | None:
    """Return what the driver reports, None without nvidia-smi."""
    answer = ask(COMMAND)
    if answer is None:
        return None
    if answer.status:
        return Driver(problem=answer.last_line)
    try:
        return _parsed(ElementTree.fromstring(answer.out))
    except ElementTree.ParseError as error:
        return Driver(problem=f"nvidia-smi printed no XML ({error})")


def is_device_present() -> bool:
    """Return whether an NVIDIA device is in this machine or container, whatever its driver says."""
    try:
        if any(DEVICE_FILES.glob("nvidia[0-9]*")):
            return True
        return any(_is_gpu(device) for device in PCI_DEVICES.iterdir())
    except OSError:
        return False


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
    except OSError:
        return False
    return vendor == NVIDIA and kind.startswith(DISPLAY_CLASS)


def _parsed(log: ElementTree.Element) -> Driver:
    return Driver(
        version=log.findtext("driver_version", "").strip(),
        cuda_version=log.findtext("cuda_version", "").strip(),
        gpus=tuple(_gpu(index, each) for index, each in enumerate(log.findall("gpu"))),
    )


def _gpu(index: int, gpu: ElementTree.Element) -> NvidiaGpu:
    return NvidiaGpu(
        index=index,
        name=gpu.findtext("product_name", "unknown").strip(),
        memory_bytes=_bytes(gpu.findtext("fb_memory_usage/total")) or 0,
        used_bytes=_bytes(gpu.findtext("fb_memory_usage/used")) or 0,
        compute_mode=gpu.findtext("compute_mode", "Default").strip(),
        is_split=gpu.findtext("mig_mode/current_mig", "").strip() == "Enabled",
        processes=tuple(_process(each) for each in gpu.findall("processes/process_info")),
    )


def _process(process: ElementTree.Element) -> GpuProcess:
    pid = process.findtext("pid", "").strip()
    return GpuProcess(
        pid=int(pid) if pid.isdigit() else 0,
        name=process.findtext("process_name", "unknown").strip(),
        used_bytes=_bytes(process.findtext("used_memory")),
    )


def _bytes(text: str | None) -> int | None:
    """Return what ``143771 MiB`` means; None for ``N/A``."""
    number = (text or "").split(" ")[0]
    return int(number) * MIB if number.isdigit() else None
