"""What the installed torch was built for, read from its files; and what it sees, asked in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scaling.doctor.commands import Ask

PROBE = (sys.executable, "-m", "scaling.doctor.torch_probe")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """torch/version.py."""

    version: str | None
    """None where torch is not installed."""
    cuda: str | None = None
    hip: str | None = None

    @property
    def for_gpus(self) -> bool:
        return self.cuda is not None or self.hip is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """One GPU that torch can use, in torch's order."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSees:
    """What torch finds when it is started."""

    devices: tuple[TorchDevice, ...] = ()
    architectures: tuple[str, ...] = ()
    """Its kernels are compiled for: ``sm_90``, or ``compute_90`` to be compiled for newer ones."""
    backends: tuple[str, ...] = ()
    """Of process groups."""
    problem: str = ""
    """Why it does not load."""
    gpu_problem: str = ""
    """Why it finds no GPU, where it was built for some."""


def package_folder(package: str) -> Path | None:
    """Return where a package is installed, without importing it; None where it is not."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(found.origin).parent if found and found.origin else None


def read_build(folder: Path | None) -> TorchBuild:
    """Return the build of the torch in ``folder``."""
    try:
        text = (folder / "version.py").read_text() if folder else ""
    except OSError:
        text = ""
    return TorchBuild(version=_assigned(text, "__version__"), cuda=_assigned(text, "cuda"), hip=_assigned(text, "hip"))


def _assigned(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def ask_torch(ask: Ask) -> TorchSees:
    """Return what torch sees; costs its import."""
    answer = ask(PROBE)
    if answer is None:
        return TorchSees(problem=f"{PROBE[0]} cannot be started")
    try:
        found = json.loads(answer.out)
        return TorchSees(
            devices=tuple(
                TorchDevice(name=each["name"], memory_bytes=each["memory_bytes"], capability=tuple(each["capability"]))
                for each in found.get("devices", ())
            ),
            architectures=tuple(found.get("architectures", ())),
            backends=tuple(found.get("backends", ())),
            problem=found.get("problem", ""),
            gpu_problem=found.get("gpu_problem", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return TorchSees(problem=answer.last_line)


def runs_on(architectures: Iterable[str], capability: tuple[int, int]) -> bool:
    """Return whether kernels compiled for ``architectures`` run on such a device.

    Machine code runs on the same major version from its minor one on, code to be compiled on any newer device.
    Source: CUDA C++ Programming Guide, "Application Compatibility". Suffixed ones (``sm_90a``) run on that alone.
    """
    major, minor = capability
    for each in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", each)
        if not found:
            continue
        compiled, suffix = (int(found[2]), int(found[3])), found[4]
        if compiled == (major, minor):
            return True
        if not suffix and compiled <= (major, minor) and (found[1] == "compute" or compiled[0] == major):
            return True
    return not architectures
