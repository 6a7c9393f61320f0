"""Replays of logs that are written by hand, against the documented rules of the allocator."""

from __future__ import annotations

import pytest

from scaling.trace.allocator import replay
from strategies.errors import ScalingError
from strategies.estimate import Phase
from tests.scaling.trace.builders import BACKWARD, FORWARD, freed, log_of, made, resized

MIB = 1 << 20


def test_peaks_are_per_section_and_reserved_memory_stays() -> None:
    log = log_of([(FORWARD, [made(0, 40 * MIB), freed(0, 40 * MIB)]), (BACKWARD, [made(1, 4 * MIB)])])
    forward, backward = replay(log).sections
    assert (forward.allocated_bytes, forward.reserved_bytes) == (40 * MIB, 40 * MIB)
    assert (backward.allocated_bytes, backward.reserved_bytes) == (4 * MIB, 40 * MIB), "cut from the freed 40 MiB"


def test_streams_do_not_share_memory() -> None:
    rows = [made(0, 40 * MIB), freed(0, 40 * MIB), made(1, 40 * MIB)]
    assert replay(log_of([(FORWARD, rows)])).peak_reserved_bytes == 40 * MIB
    assert replay(log_of([(FORWARD, rows)], streams={1: 3})).peak_reserved_bytes == 80 * MIB


def test_resize_takes_the_new_memory_before_it_frees_the_old() -> None:
    """torch's resize_bytes_cuda copies from one to the other; a resize to nothing only frees."""
    grown = replay(log_of([(FORWARD, [made(0, 20 * MIB), resized(0, 20 * MIB)])]))
    assert grown.peak_allocated_bytes == 60 * MIB
    emptied = replay(log_of([(FORWARD, [made(0, 20 * MIB), resized(0, -20 * MIB), resized(0, 20 * MIB)])]))
    assert (emptied.peak_allocated_bytes, emptied.peak_reserved_bytes) == (20 * MIB, 20 * MIB)


@pytest.mark.parametrize("expandable", [False, True])
def test_running_out_names_the_request_and_the_moment(expandable: bool) -> None:
    rows = [made(0, 60 * MIB), made(1, 20 * MIB), made(2, 30 * MIB, "aten.mm.default"), freed(0, 60 * MIB)]
    result = replay(log_of([(FORWARD, rows), (BACKWARD, [])]), expandable_segments=expandable, capacity_bytes=100 * MIB)
    failure = result.out_of_memory
    assert failure is not None
    assert (failure.section.phase, failure.op) == (Phase.FORWARD, "aten.mm.default")
    assert (failure.requested_bytes, failure.allocated_bytes) == (30 * MIB, 80 * MIB)
    assert failure.reserved_bytes == 80 * MIB
    assert [peak.section.phase for peak in result.sections] == [Phase.FORWARD]


def test_enough_memory_is_enough() -> None:
    rows = [made(0, 60 * MIB), made(1, 20 * MIB), made(2, 20 * MIB)]
    assert replay(log_of([(FORWARD, rows)]), capacity_bytes=100 * MIB).out_of_memory is None


def test_storage_without_bytes_takes_no_memory() -> None:
    assert replay(log_of([(FORWARD, [made(0, 0), freed(0, 0)])])).peak_reserved_bytes == 0


def test_capacity_must_be_positive() -> None:
    with pytest.raises(ScalingError, match="capacity_bytes=0 must be above zero"):
        replay(log_of([(FORWARD, [])]), capacity_bytes=0)
