"""Workspaces that CUDA's matrix library keeps: they come from the allocator, but no operator shows them."""

from __future__ import annotations

from dataclasses import replace

from scaling.ownership import Cause
from scaling.storage_log import EventKind
from scaling.trace.log import CAUSES, Row, StorageUse, TraceLog, build_log, op_names
from strategies.estimate import Phase
from strategies.units import KIB, MIB

CUBLAS_WORKSPACE_BYTES = 8 * MIB + 128 * KIB
"""Of a handle on devices before Hopper. Source: torch 2.x, ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize."""
HOPPER_CUBLAS_WORKSPACE_BYTES = 32 * MIB
"""Likewise on compute capability 9.0 (H100, H200)."""

_MATRIX_PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.", "aten._grouped_mm.")


def with_cublas_workspaces(log: TraceLog, *, num_bytes: int) -> TraceLog:
    """Return ``log`` with one workspace from the first matrix product of forward on, and one from that of backward.

    A handle belongs to a thread, and backward runs in a thread of its own; both keep their workspace for good.
    """
    names = op_names(log)
    uses = {number: StorageUse(int(log.cause[number]), int(log.stream[number])) for number in range(log.num_storages)}
    waiting = {Phase.FORWARD, Phase.BACKWARD}
    rows: list[list[Row]] = []
    for section, first, end in log.ranges():
        rows.append([])
        for index in range(first, end):
            if section.phase in waiting and names[index].startswith(_MATRIX_PRODUCTS):
                waiting.remove(section.phase)
                number = log.num_storages + len(waiting)
                uses[number] = StorageUse(CAUSES.index(Cause.FRAMEWORK_CONTEXT), 0)
                rows[-1].append(Row(EventKind.ALLOCATE, number, num_bytes, "cublas workspace"))
            rows[-1].append(
                Row(int(log.kind[index]), int(log.storage[index]), int(log.change_bytes[index]), names[index])
            )
    return replace(build_log(log.sections, rows, uses), assumed_values=log.assumed_values)
