"""Workspaces of CUDA's matrix library in a log."""

from __future__ import annotations

from scaling.trace import with_cublas_workspaces
from scaling.trace.allocator import replay
from scaling.trace.workspaces import CUBLAS_WORKSPACE_BYTES, HOPPER_CUBLAS_WORKSPACE_BYTES
from tests.scaling.trace.builders import BACKWARD, FORWARD, freed, log_of, made

MIB = 1 << 20


def test_one_workspace_for_forward_and_one_for_backward_stay_for_good() -> None:
    log = log_of(
        [
            (FORWARD, [made(0, 8), made(1, 8, "aten.mm.default"), made(2, 8, "aten.addmm.default")]),
            (BACKWARD, [freed(0, 8), made(3, 8, "aten.mm.default"), made(4, 8, "aten.bmm.default")]),
        ]
    )
    with_them = with_cublas_workspaces(log, num_bytes=HOPPER_CUBLAS_WORKSPACE_BYTES)
    added = with_them.live_bytes()[-1] - log.live_bytes()[-1]
    assert added == 2 * 32 * MIB
    assert with_them.num_events == log.num_events + 2
    assert replay(with_them).peak_reserved_bytes == 2 * MIB + 2 * 32 * MIB


def test_module_without_products_has_no_workspace() -> None:
    log = log_of([(FORWARD, [made(0, 8)])])
    assert with_cublas_workspaces(log, num_bytes=CUBLAS_WORKSPACE_BYTES).equals(log)


def test_default_workspace_matches_documentation() -> None:
    """torch's notes on CUDA semantics: ``:4096:2:16:8``, two buffers of 4096 KiB and eight of 16 KiB."""
    assert CUBLAS_WORKSPACE_BYTES == (2 * 4096 + 8 * 16) * 1024
