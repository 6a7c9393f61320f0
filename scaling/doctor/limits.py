"""Limits of this process that its ranks inherit (``ulimit``): locked memory, open files, file size, address space."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Area, Examined, Finding, error, error_if, examined, note, warning
from strategies.detect import locked_memory_bytes
from strategies.units import MIB, format_bytes

KERNEL_LOCKED_BYTES = 8 * MIB
"""What Linux grants since 5.16 (include/uapi/linux/resource.h, MLOCK_LIMIT); 64 KiB before."""
ENOUGH_FILES = 4096
"""A rank holds some hundred connections, files of data and of weights; data loaders pass tensors by open files."""
INFINIBAND = Path("/sys/class/infiniband")
LOCK_FIX = (
    "as root: ulimit -l unlimited; for good: '* - memlock unlimited' in /etc/security/limits.conf, "
    "docker run --ulimit memlock=-1, LimitMEMLOCK=infinity for a Slurm daemon"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """None: no limit."""

    locked_bytes: int | None
    """``ulimit -l``."""
    ignores_locked: bool
    """Whether that does not bind this process (CAP_IPC_LOCK), as root's in most containers."""
    open_files: int | None
    most_open_files: int | None
    """What ``ulimit -n`` may be raised to."""
    file_bytes: int | None
    address_bytes: int | None
    has_infiniband: bool = False


def examine(asked: Asked) -> Examined:
    facts = read()
    return examined(
        Area.LIMITS,
        findings(facts, asked.plan, asked.environ),
        locked_bytes="unlimited" if facts.locked_bytes is None else facts.locked_bytes,
        open_files="unlimited" if facts.open_files is None else facts.open_files,
    )


def read() -> Limits:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked = _or_none(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    return Limits(
        locked_bytes=locked,
        ignores_locked=locked is not None and locked_memory_bytes() is None,
        open_files=_or_none(soft),
        most_open_files=_or_none(hard),
        file_bytes=_or_none(resource.getrlimit(resource.RLIMIT_FSIZE)[0]),
        address_bytes=_or_none(resource.getrlimit(resource.RLIMIT_AS)[0]),
        has_infiniband=_has_entries(INFINIBAND),
    )


def _or_none(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _has_entries(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def findings(facts: Limits, plan: Needs | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield limits that the plan's ranks, or most runs, would meet."""
    yield from _locked(facts, plan, environ)
    if facts.open_files is not None and facts.open_files < ENOUGH_FILES:
        most = "unlimited" if facts.most_open_files is None else facts.most_open_files
        yield warning(
            f"ulimit -n is {facts.open_files}: data loaders and checkpoints of many files stop with 'too many open "
            f"files'",
            f"ulimit -n {most}" if most != facts.open_files else "as root: ulimit -n 65536",
        )
    yield from _file_size(facts, plan)
    if facts.address_bytes is not None:
        yield error_if(
            plan is not None and plan.on_gpus,
            f"ulimit -v is {format_bytes(facts.address_bytes)}: CUDA reserves far more address space than it uses",
            "ulimit -v unlimited",
        )


def _locked(facts: Limits, plan: Needs | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    limit, needed = facts.locked_bytes, plan.locked_bytes(environ) if plan else 0
    if limit is None:
        return
    told = f"ulimit -l is {format_bytes(limit)} (locked memory of a process)"
    if facts.ignores_locked:
        if needed > limit or (plan is None and limit < KERNEL_LOCKED_BYTES):
            yield note(f"{told}; it does not bind here, by CAP_IPC_LOCK", f"for ranks of users without it, {LOCK_FIX}")
    elif needed > limit:
        yield error(f"{told}, and a rank of the plan locks {format_bytes(needed)}", LOCK_FIX)
    elif facts.has_infiniband and (plan is None or plan.on_gpus):
        yield warning(f"{told}, and InfiniBand, which is here, locks all buffers that it sends from", LOCK_FIX)
    elif plan is None and limit < KERNEL_LOCKED_BYTES:
        yield warning(
            f"{told}, below the kernel's own {format_bytes(KERNEL_LOCKED_BYTES)}: offload to NVMe and InfiniBand lock "
            f"more; what CUDA pins for offload to the CPU does not count",
            LOCK_FIX,
        )


def _file_size(facts: Limits, plan: Needs | None) -> Iterator[Finding]:
    limit = facts.file_bytes
    if limit is None:
        return
    needed = plan.checkpoint_bytes[0] if plan else 0
    yield error_if(
        needed > limit,
        f"ulimit -f is {format_bytes(limit)}: no file may grow larger"
        + (f", and the plan's model is {format_bytes(needed)}" if needed > limit else ""),
        "ulimit -f unlimited, or --max-shard-size below it",
    )
