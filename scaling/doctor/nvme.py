"""The folder for states that rest on NVMe: whether it is there, how much is free, and how fast it is."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Area, Examined, Finding, error, error_if, examined, note, warning
from scaling.doctor.space import NO_SPACE, Space, read_space, why_not_writable
from strategies.units import MIB, format_bytes, format_seconds

BLOCK_BYTES = MIB
"""Of one request; DeepSpeed's own default (aio.block_size)."""
NUM_BLOCKS = 32
LONGEST_S = 0.5
"""Of writing, and of reading: a slow disk is told from fewer blocks."""
SLOW_BYTES_PER_S = 1e9
"""Below it no NVMe disk of a server: PCIe 3 drives read 3 GB/s and more, SATA at most 0.6."""
MOUNTS = Path("/proc/self/mounts")
NOT_A_DISK = ("tmpfs", "ramfs", "overlay", "nfs", "nfs4", "cifs", "fuse.sshfs", "9p")
"""File systems in RAM, of a container's layers, or behind a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Measured with a few MiB."""

    write_bytes_per_s: float
    read_bytes_per_s: float
    is_direct: bool
    """Past the cache of files (O_DIRECT), as DeepSpeed's operator works; else the cache may have answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeFacts:
    """One folder."""

    path: Path
    space: Space | None = None
    problem: str = ""
    """Why nothing can be written there, or what it is instead of a folder."""
    file_system: str = ""
    speed: Speed | None = None


def examine(asked: Asked) -> Examined:
    facts = read(asked.nvme_path) if asked.nvme_path else None
    speed = facts.speed if facts else None
    return examined(
        Area.NVME,
        findings(facts, asked.plan),
        path=str(facts.path) if facts else None,
        file_system=facts.file_system or None if facts else None,
        free_bytes=facts.space.free_bytes if facts and facts.space else None,
        plan_bytes=asked.plan.nvme_bytes if asked.plan and asked.plan.uses_nvme else None,
        write_bytes_per_s=round(speed.write_bytes_per_s) if speed else None,
        read_bytes_per_s=round(speed.read_bytes_per_s) if speed else None,
    )


def read(path: Path) -> NvmeFacts:
    """Return the state of ``path``; writes and reads a few MiB where it can."""
    if not path.is_dir():
        return NvmeFacts(path=path, problem="it is a file" if path.exists() else "it does not exist")
    problem = why_not_writable(path)
    return NvmeFacts(
        path=path,
        space=read_space(path),
        problem=problem,
        file_system=file_system_of(path),
        speed=None if problem else measure_speed(path),
    )


def file_system_of(path: Path) -> str:
    """Return the kind of file system that ``path`` is on, empty where it cannot be told. Source: proc(5), mounts."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text(errors="replace").splitlines()]
    except OSError:
        return ""
    here = path.resolve()
    holding = [each for each in mounts if len(each) > 2 and here.is_relative_to(each[1])]
    return max(holding, key=lambda each: len(each[1]))[2] if holding else ""


def measure_speed(folder: Path) -> Speed | None:
    """Return how fast a file of some MiB is written and read there, None where that fails."""
    for direct in (os.O_DIRECT, 0):
        try:
            return _measured(folder, direct)
        except OSError:  # a file system without O_DIRECT, as tmpfs before Linux 6.6
            continue
    return None


def _measured(folder: Path, direct: int) -> Speed:
    buffer = mmap.mmap(-1, BLOCK_BYTES)  # O_DIRECT takes whole pages
    buffer.write(os.urandom(BLOCK_BYTES))  # some disks compress
    descriptor, name = tempfile.mkstemp(prefix=".doctor-", dir=folder)
    try:
        os.close(descriptor)
        descriptor = os.open(name, os.O_RDWR | direct)
        try:
            write_rate, num_blocks = _rate(lambda at: os.pwrite(descriptor, buffer, at), NUM_BLOCKS)
            os.fdatasync(descriptor)
            read_rate, _ = _rate(lambda at: os.preadv(descriptor, [buffer], at), num_blocks)
        finally:
            os.close(descriptor)
    finally:
        os.unlink(name)
        buffer.close()
    return Speed(write_bytes_per_s=write_rate, read_bytes_per_s=read_rate, is_direct=bool(direct))


def _rate(move: Callable[[int], int], num_blocks: int) -> tuple[float, int]:
    """Return bytes per second of up to ``num_blocks`` calls of ``move``, and how many there were time for."""
    start, done = time.perf_counter(), 0
    while done < num_blocks and (not done or time.perf_counter() - start < LONGEST_S):
        move(done * BLOCK_BYTES)
        done += 1
    return done * BLOCK_BYTES / max(time.perf_counter() - start, 1e-9), done


def findings(facts: NvmeFacts | None, plan: Needs | None) -> Iterator[Finding]:
    """Yield what is wrong with the folder; errors are for plans that use it, or for a folder that was named."""
    if facts is None:
        if plan is not None and plan.uses_nvme:
            yield warning("the plan rests states on NVMe, and no folder was named to look at", "--nvme-path DIR")
        return
    if facts.problem:
        make = "free space" if facts.problem in NO_SPACE else f"mkdir -p {facts.path}, where you may write"
        yield error(f"--nvme-path {facts.path}: {facts.problem}", f"{make}, or name another folder")
        return
    yield from _space(facts, plan)
    if facts.file_system in NOT_A_DISK:
        in_ram = facts.file_system in ("tmpfs", "ramfs")
        yield error_if(
            in_ram and plan is not None and plan.uses_nvme,
            f"--nvme-path {facts.path} is on {facts.file_system}, "
            + ("which is host memory" if in_ram else "which is no local disk of its own"),
            "name a folder on a local NVMe disk (lsblk -d -o NAME,ROTA,TRAN shows them, findmnt where they are)",
        )
    yield from _speed(facts, plan)


def _space(facts: NvmeFacts, plan: Needs | None) -> Iterator[Finding]:
    needed, free = plan.nvme_bytes if plan else 0, facts.space.free_bytes if facts.space else None
    if free is not None and needed > free:
        yield error(
            f"--nvme-path {facts.path}: {format_bytes(free)} are free, and the plan rests {format_bytes(needed)} there",
            "free space, name a folder on a larger disk, or plan with more GPUs",
        )


def _speed(facts: NvmeFacts, plan: Needs | None) -> Iterator[Finding]:
    speed = facts.speed
    if speed is None:
        yield note(f"--nvme-path {facts.path}: its speed could not be measured")
        return
    slower = min(speed.write_bytes_per_s, speed.read_bytes_per_s)
    if slower < SLOW_BYTES_PER_S:
        moved = plan.nvme_bytes if plan else 0
        step = f"; a step writes and reads the plan's {format_bytes(moved)}: about {_step_time(moved, speed)}"
        yield warning(
            f"--nvme-path {facts.path} writes {format_bytes(speed.write_bytes_per_s)}/s and reads "
            f"{format_bytes(speed.read_bytes_per_s)}/s, slower than an NVMe disk{step if moved else ''}",
            "name a folder on a local NVMe disk, or plan with --offload-optimizer cpu",
        )


def _step_time(num_bytes: int, speed: Speed) -> str:
    return format_seconds(num_bytes / speed.write_bytes_per_s + num_bytes / speed.read_bytes_per_s, digits=3)
