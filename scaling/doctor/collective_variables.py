"""Variables of NCCL, gloo and torch that slow a run down or keep its ranks from meeting."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

from scaling.doctor.asked import Needs
from scaling.doctor.findings import Finding, error_if, note, warning

SLOW = {
    "NCCL_P2P_DISABLE": "GPUs pass data through host memory, not by NVLink or PCIe",
    "NCCL_SHM_DISABLE": "GPUs of one machine talk over the network",
    "NCCL_IB_DISABLE": "nodes talk over sockets, not InfiniBand",
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver, and predictions do not hold",
}
"""Set to other than 0 for the sake of a search for a fault, and left."""
RENAMED = {
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
}
"""torch 2.13 takes them with a warning."""
INTERFACES = {"NCCL_SOCKET_IFNAME": "nccl", "GLOO_SOCKET_IFNAME": "gloo"}


def findings(
    environ: Mapping[str, str], plan: Needs | None, *, interfaces: tuple[str, ...] | None = None
) -> Iterator[Finding]:
    """Yield such variables; those of GPUs where the plan is for some, or there is no plan."""
    with_gpus = plan is None or plan.on_gpus
    for name, what in SLOW.items():
        if with_gpus and environ.get(name, "0") not in ("", "0"):
            yield warning(f"{name}={environ[name]}: {what}", f"unset {name}")
    for old, new in RENAMED.items():
        if with_gpus and old in environ:
            yield note(f"{old} has been renamed", f"export {new}={environ[old]}; unset {old}")
    if with_gpus and environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        yield note(f"NCCL_DEBUG={environ['NCCL_DEBUG']} prints hundreds of lines a rank", "export NCCL_DEBUG=WARN")
    if environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield warning(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective by others before it: steps take longer",
            "unset TORCH_DISTRIBUTED_DEBUG",
        )
    yield from _interfaces(environ, plan, interfaces_here() if interfaces is None else interfaces)


def interfaces_here() -> tuple[str, ...]:
    """Return this machine's network interfaces."""
    try:
        return tuple(name for _, name in socket.if_nameindex())
    except OSError:
        return ()


def _interfaces(environ: Mapping[str, str], plan: Needs | None, here: tuple[str, ...]) -> Iterator[Finding]:
    for name, backend in INTERFACES.items():
        wanted = environ.get(name, "")
        if wanted and here and not _finds(wanted, here, by_prefix=backend == "nccl"):
            meets = plan is not None and plan.on_gpus == (backend == "nccl") and plan.ranks * plan.num_nodes > 1
            yield error_if(
                meets,
                f"{name}={wanted} names no network interface of this machine ({', '.join(here)})",
                f"unset {name}, or name one of them",
            )


def _finds(wanted: str, here: tuple[str, ...], *, by_prefix: bool) -> bool:
    """Return whether some interface is meant. NCCL's: beginnings of names, ``=`` for whole ones, ``^`` for others.

    Source: NCCL's documentation, "Environment Variables", NCCL_SOCKET_IFNAME; gloo takes whole names.
    """
    if by_prefix and wanted.startswith("^"):
        left_out = tuple(wanted[1:].lstrip("=").split(","))
        return any(not name.startswith(left_out) for name in here)
    names = tuple(wanted.removeprefix("=").split(","))
    is_beginning = by_prefix and not wanted.startswith("=")
    return any(name.startswith(names) if is_beginning else name in names for name in here)
