"""/dev/shm: its size, what is free, and what ended programs have left there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Area, Examined, Finding, error_if, examined, warning
from scaling.doctor.processes import folders, mapped, opened
from scaling.doctor.space import Space, StatFile, read_space
from strategies.units import MIB, format_bytes

FOLDER = Path("/dev/shm")
ENOUGH_BYTES = 512 * MIB
"""What DeepSpeed 0.19.8 calls too small (env_report.py); containers have 64 MiB unless told otherwise."""
LEFT_BY = re.compile(r"(deepspeed_allreduce_buffer|nccl-|torch_\d+_|psm_|__KMP_REGISTERED_LIB)")
"""Names that DeepSpeed's collectives, NCCL, torch's data loaders, Python and OpenMP give."""
LEFTOVER_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """/dev/shm now."""

    space: Space | None
    """None where there is none."""
    left: tuple[Path, ...] = ()
    """Files of programs that have ended."""
    left_bytes: int = 0


def examine(asked: Asked) -> Examined:
    facts = read()
    return examined(
        Area.SHARED_MEMORY,
        findings(facts, asked.plan),
        size_bytes=facts.space.size_bytes if facts.space else None,
        free_bytes=facts.space.free_bytes if facts.space else None,
        left_by_ended_programs_bytes=facts.left_bytes,
    )


def read(folder: Path = FOLDER, stat: StatFile = os.statvfs) -> SharedMemory:
    """Return the state of ``folder``."""
    found = [path for path in _files(folder) if LEFT_BY.match(path.name)]
    left = _not_mapped(found) if found else ()
    return SharedMemory(space=read_space(folder, stat), left=left, left_bytes=sum(map(_size, left)))


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() and path.stat().st_uid == os.getuid())
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _not_mapped(files: list[Path]) -> tuple[Path, ...]:
    """Return the files that no process has mapped or open: our own ones, which we may look at."""
    used = {path for process in folders() for path in (*mapped(process), *opened(process))}
    return tuple(path for path in files if str(path) not in used)


def findings(facts: SharedMemory, plan: Needs | None) -> Iterator[Finding]:
    """Yield where ranks and data loaders would find too little."""
    many = plan is not None and plan.ranks > 1 and not plan.runs_tensorflow
    if facts.space is None:
        yield error_if(
            many and plan is not None and plan.on_gpus,
            "there is no /dev/shm, by which NCCL and data loaders pass data between processes",
            "start the container with --shm-size=1g, or mount -t tmpfs tmpfs /dev/shm",
        )
        return
    size, free = facts.space.size_bytes, facts.space.free_bytes
    if size < ENOUGH_BYTES and (plan is None or many):
        yield warning(
            f"/dev/shm has {format_bytes(size)}: NCCL and data loaders (--num-workers) stop with bus errors where it "
            f"is full",
            "start the container with --shm-size=1g; as root: mount -o remount,size=1g /dev/shm",
        )
    elif free < min(ENOUGH_BYTES // 4, size // 8):
        yield warning(
            f"/dev/shm is almost full: {format_bytes(free)} of {format_bytes(size)} are free",
            "ls -lS /dev/shm shows what takes it; remove what no process uses",
        )
    if facts.left_bytes > LEFTOVER_BYTES:
        patterns = sorted({f"{FOLDER}/{match[0]}*" for path in facts.left if (match := LEFT_BY.match(path.name))})
        yield warning(
            f"ended programs left {len(facts.left)} files in /dev/shm, {format_bytes(facts.left_bytes)} of host memory "
            f"that no process here uses",
            f"rm {' '.join(patterns)}, while nothing trains here",
        )
