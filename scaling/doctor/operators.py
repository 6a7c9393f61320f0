"""DeepSpeed's operators: which the plan needs, whether they are there, and whether they could be compiled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scaling.doctor.asked import Asked, Needs, pins_itself
from scaling.doctor.commands import Ask, ask
from scaling.doctor.findings import Area, Examined, Finding, error, error_if, examined, note, warning
from scaling.doctor.toolchain import (
    ASYNC_IO,
    CPU_ADAM,
    PIN_MEMORY,
    Operator,
    Prebuilt,
    State,
    Toolchain,
    extensions_folder,
    read_operators,
    read_prebuilt,
    read_toolchain,
)
from scaling.doctor.torch_build import TorchBuild, package_folder, read_build

STALE_LOCK_S = 600.0
"""Building one operator takes a minute or two (measured: pin_memory 100 s on two busy cores)."""
INSTALL = "apt-get install g++ python3-dev, or dnf install gcc-c++ python3-devel; pip install ninja"
AIO = "apt-get install libaio-dev, or dnf install libaio-devel"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFacts:
    """What there is of DeepSpeed's operators, and what could compile them."""

    toolchain: Toolchain
    build: TorchBuild
    prebuilt: Prebuilt
    operators: tuple[Operator, ...]
    deepspeed: Path | None
    """Its folder; None where it is not installed."""


def examine(asked: Asked) -> Examined:
    facts = read(asked.environ, ask)
    states = ", ".join(f"{each.name} {each.state}" for each in facts.operators) if facts.deepspeed else None
    return examined(
        Area.OPERATORS,
        findings(facts, asked.plan, asked.environ),
        compiler=facts.toolchain.compiler_path,
        ninja=facts.toolchain.ninja_path,
        nvcc=facts.toolchain.nvcc_version,
        libaio="installed" if facts.toolchain.has_libaio else None,
        deepspeed=states,
    )


def read(environ: Mapping[str, str], ask: Ask) -> OperatorFacts:
    deepspeed, build = package_folder("deepspeed"), read_build(package_folder("torch"))
    prebuilt = read_prebuilt(deepspeed)
    return OperatorFacts(
        toolchain=read_toolchain(environ, ask),
        build=build,
        prebuilt=prebuilt,
        operators=read_operators(extensions_folder(environ, build), prebuilt, now_s=time.time()),
        deepspeed=deepspeed,
    )


def needed(plan: Needs | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the operators that the plan cannot do without.

    None for CPU offload: the update on the host is torch's (``zero_force_ds_cpu_optimizer=false``), pinning CUDA's.
    """
    if plan is None or not plan.runs_deepspeed:
        return ()
    if plan.uses_nvme:
        return (ASYNC_IO, PIN_MEMORY)
    return (PIN_MEMORY,) if pins_itself(environ) else ()


def findings(facts: OperatorFacts, plan: Needs | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what keeps operators from being used; an error where the plan needs them."""
    if facts.deepspeed is None:
        return
    names = needed(plan, environ)
    yield from _toolchain(facts, plan, names)
    yield from _locks(facts.operators, names)
    if ASYNC_IO in names and not facts.toolchain.has_libaio:
        yield error("offload to NVMe needs libaio, whose header libaio.h is not found", AIO)
    yield from _prebuilt(facts, names)
    yield from _cuda(facts)


def _toolchain(facts: OperatorFacts, plan: Needs | None, names: tuple[str, ...]) -> Iterator[Finding]:
    what = facts.toolchain.problem
    absent = [each.name for each in facts.operators if each.state is State.TO_COMPILE]
    if not what:
        return
    # async_io compiles and links a test program each time it is loaded, also where it is there (async_io.py).
    lost = [name for name in names if name in absent or name == ASYNC_IO]
    if lost:
        yield error(f"{what}, and the plan needs DeepSpeed's {' and '.join(lost)}, to be compiled here", INSTALL)
    elif CPU_ADAM not in absent:
        return
    elif plan is None:
        yield warning(f"{what}: DeepSpeed's operators (CPU Adam, async I/O) cannot be compiled", INSTALL)
    elif plan.offloads_optimizer and plan.runs_deepspeed:
        yield note(
            f"{what}: DeepSpeedCPUAdam cannot be compiled. The plan does without: its update on the host is torch's",
            f"only a program of your own that wants DeepSpeedCPUAdam needs it: {INSTALL}",
        )
    else:
        yield note(f"{what}: DeepSpeed's operators cannot be compiled; the plan uses none")


def _locks(operators: tuple[Operator, ...], names: tuple[str, ...]) -> Iterator[Finding]:
    for each in operators:
        if each.lock_age_s is not None and each.lock_age_s > STALE_LOCK_S:
            yield error_if(
                each.name in names,
                f"{each.folder}/lock is {each.lock_age_s / 60:.0f} minutes old: a build of {each.name} was killed, and "
                f"the next program that needs it waits for ever",
                f"rm -r {each.folder}",
            )


def _prebuilt(facts: OperatorFacts, names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield where DeepSpeed's operators were built for another torch: they are then refused, not built again."""
    here = ".".join((facts.build.version or "").split(".")[:2])
    if facts.prebuilt.names and here and facts.prebuilt.torch not in ("", "0.0", here):
        yield error_if(
            any(name in facts.prebuilt.names for name in names),
            f"DeepSpeed's operators ({', '.join(facts.prebuilt.names)}) were built for torch {facts.prebuilt.torch}, "
            f"and torch {facts.build.version} is installed: they are refused",
            "pip install --force-reinstall --no-deps --no-cache-dir deepspeed",
        )


def _cuda(facts: OperatorFacts) -> Iterator[Finding]:
    """Yield where CUDA's compiler is of another version than torch's CUDA: DeepSpeed refuses another major one."""
    compiled, built = facts.toolchain.nvcc_version, facts.build.cuda
    if compiled and built and compiled.split(".")[0] != built.split(".")[0]:
        yield note(
            f"nvcc is of CUDA {compiled}, and torch {facts.build.version} is for CUDA {built}: DeepSpeed compiles no "
            f"CUDA operator with it. No plan needs one",
            f"install CUDA {built}'s toolkit and set CUDA_HOME to it",
        )
