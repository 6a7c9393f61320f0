"""Rules of the CUDA caching allocator.

Expected values: "Note [CUDACachingAllocator]" at the top of torch's c10/cuda/CUDACachingAllocator.cpp (requests up to
1 MiB are packed into 2 MiB segments, those below 10 MiB into 20 MiB segments, larger ones get their own, rounded to
2 MiB; a block is reused on its own stream only) and Z. DeVito, "A guide to PyTorch's CUDA Caching Allocator" (2022).
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.trace.allocator.caching import CachingAllocator, DriverMemoryExhausted, FixedSegments
from scaling.trace.allocator.expandable import ExpandableSegments

MIB = 1 << 20


@pytest.mark.parametrize(
    ("request_bytes", "reserved_bytes"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (4 * MIB, 20 * MIB),
        (10 * MIB - 1024, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (int(12.3 * MIB), 14 * MIB),
        (100 * MIB, 100 * MIB),
    ],
)
def test_first_request_reserves_documented_segment(request_bytes: int, reserved_bytes: int) -> None:
    allocator = FixedSegments()
    allocator.allocate(request_bytes)
    assert allocator.reserved_bytes == reserved_bytes


@pytest.mark.parametrize(("request_bytes", "allocated_bytes"), [(1, 512), (512, 512), (513, 1024), (5 * MIB, 5 * MIB)])
def test_request_is_rounded_to_512_bytes(request_bytes: int, allocated_bytes: int) -> None:
    for allocator in (FixedSegments(), ExpandableSegments()):
        allocator.allocate(request_bytes)
        assert allocator.allocated_bytes == allocated_bytes


def test_small_requests_share_a_segment_until_it_is_full() -> None:
    allocator = FixedSegments()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(1)
    assert allocator.reserved_bytes == 4 * MIB


def test_large_block_is_not_split_when_rest_is_small() -> None:
    allocator = FixedSegments()
    allocator.free(allocator.allocate(20 * MIB))
    block = allocator.allocate(19 * MIB + MIB // 2)
    assert block.num_bytes == 20 * MIB, "a rest of up to 1 MiB stays with the block"


def test_freed_block_is_reused_on_its_own_stream_only() -> None:
    allocator = FixedSegments()
    allocator.free(allocator.allocate(40 * MIB, stream=1))
    allocator.allocate(40 * MIB, stream=1)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.free(allocator.allocate(40 * MIB, stream=2))
    assert allocator.reserved_bytes == 80 * MIB


def test_smallest_block_that_fits_is_taken() -> None:
    allocator = FixedSegments()
    blocks = [allocator.allocate(size * MIB) for size in (60, 30, 40)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(28 * MIB + MIB // 2) is blocks[1]


def test_neighbours_merge_when_freed() -> None:
    allocator = FixedSegments()
    allocator.free(allocator.allocate(40 * MIB))
    first, second = allocator.allocate(20 * MIB), allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.free(first)
    allocator.free(second)
    allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_fixed_segments_fragment_where_expandable_ones_grow() -> None:
    """A request larger than the freed block needs a new segment, or only the missing pages."""
    fixed, expandable = FixedSegments(), ExpandableSegments()
    for allocator in (fixed, expandable):
        allocator.free(allocator.allocate(100 * MIB))
        allocator.allocate(140 * MIB)
    assert (fixed.reserved_bytes, expandable.reserved_bytes) == (240 * MIB, 140 * MIB)


def test_expandable_segment_grows_in_20_mib_pages() -> None:
    allocator = ExpandableSegments()
    allocator.allocate(25 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.allocate(15 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_expandable_prefers_block_that_cannot_grow_when_it_is_smaller() -> None:
    """The end of a segment counts with the size it can grow to (get_free_block)."""
    allocator = ExpandableSegments()
    inner = allocator.allocate(36 * MIB)
    allocator.allocate(20 * MIB)
    tail = allocator.allocate(24 * MIB)
    allocator.free(inner)
    allocator.free(tail)
    assert allocator.allocate(20 * MIB).address == inner.address


@pytest.mark.parametrize("make", [FixedSegments, ExpandableSegments])
def test_cached_memory_is_given_back_before_running_out(make: type[CachingAllocator]) -> None:
    allocator = make(capacity_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB, stream=1))
    allocator.allocate(80 * MIB)
    assert (allocator.num_retries, allocator.reserved_bytes) == (1, 80 * MIB)
    with pytest.raises(DriverMemoryExhausted):
        allocator.allocate(40 * MIB)


def test_split_segment_cannot_be_given_back_but_pages_of_expandable_can() -> None:
    """torch's documentation of expandable_segments: pages inside a segment are unmapped one by one."""
    fixed, expandable = FixedSegments(), ExpandableSegments()
    for allocator in (fixed, expandable):
        allocator.free(allocator.allocate(80 * MIB))
        rest = allocator.allocate(60 * MIB)
        allocator.allocate(20 * MIB)
        allocator.free(rest)
        allocator.release_cached()
    assert (fixed.reserved_bytes, expandable.reserved_bytes) == (80 * MIB, 20 * MIB)


def test_pages_given_back_can_be_used_again() -> None:
    allocator = ExpandableSegments()
    first, kept = allocator.allocate(60 * MIB), allocator.allocate(20 * MIB)
    allocator.free(first)
    allocator.release_cached()
    again = allocator.allocate(40 * MIB)
    assert (again.address, allocator.reserved_bytes) == (first.address, 60 * MIB)
    allocator.free(kept)


class _Intervals:
    """The documented rules once more, on plain lists of intervals, as a second opinion on fixed segments."""

    def __init__(self) -> None:
        self.segments: list[tuple[tuple[int, bool], list[list[int]]]] = []
        self.reserved = 0

    def allocate(self, num_bytes: int, stream: int) -> tuple[int, int]:
        size = max(512, -(-num_bytes // 512) * 512)
        pool = (stream, size <= MIB)
        free = [
            (length, number, start)
            for number, (owner, parts) in enumerate(self.segments)
            if owner == pool
            for start, length, used in parts
            if not used and length >= size
        ]
        if free:
            _, number, start = min(free)
        else:
            total = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.segments.append((pool, [[0, total, 0]]))
            self.reserved += total
            number, start = len(self.segments) - 1, 0
        parts = self.segments[number][1]
        part = next(part for part in parts if part[0] == start)
        rest = part[1] - size
        if rest >= 512 if pool[1] else rest > MIB:
            parts.append([start + size, rest, 0])
            part[1] = size
        part[2] = 1
        return number, start

    def free(self, place: tuple[int, int]) -> None:
        owner, parts = self.segments[place[0]]
        next(part for part in parts if part[0] == place[1])[2] = 0
        merged: list[list[int]] = []
        for part in sorted(parts):
            if merged and not merged[-1][2] and not part[2]:
                merged[-1][1] += part[1]
            else:
                merged.append(part)
        self.segments[place[0]] = (owner, merged)


_SIZES = st.one_of(
    st.integers(1, 2 * MIB), st.integers(1, 64).map(lambda units: units * MIB // 2), st.integers(MIB, 90 * MIB)
)
_ACTIONS = st.lists(st.tuples(_SIZES, st.integers(0, 1), st.booleans(), st.integers(0, 10**6)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(_ACTIONS)
def test_fixed_segments_match_interval_model(actions: list[tuple[int, int, bool, int]]) -> None:
    allocator, model = FixedSegments(), _Intervals()
    live = []
    for size, stream, release, pick in actions:
        live.append((allocator.allocate(size, stream=stream), model.allocate(size, stream)))
        if release:
            block, place = live.pop(pick % len(live))
            allocator.free(block)
            model.free(place)
        assert allocator.reserved_bytes == model.reserved


@settings(max_examples=60, deadline=None)
@given(_ACTIONS, st.booleans())
def test_live_blocks_never_overlap_and_all_memory_comes_back(
    actions: list[tuple[int, int, bool, int]], expandable: bool
) -> None:
    allocator: CachingAllocator = ExpandableSegments() if expandable else FixedSegments()
    live = []
    for size, stream, release, pick in actions:
        live.append(allocator.allocate(size, stream=stream))
        if release:
            allocator.free(live.pop(pick % len(live)))
        ranges = sorted((block.address, block.end) for block in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
        assert allocator.allocated_bytes == sum(block.num_bytes for block in live) <= allocator.reserved_bytes
    for block in live:
        allocator.free(block)
    allocator.release_cached()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)
