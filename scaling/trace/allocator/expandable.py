"""Expandable segments: one range of addresses a pool, to which the driver adds memory page by page.

Source: torch 2.x, c10/cuda/CUDACachingAllocator.cpp (get_free_block, try_allocate_expandable_block,
find_expandable_block, map_block, unmap_block).
"""

from __future__ import annotations

from collections import defaultdict
from typing import final

from scaling.trace.allocator.blocks import LARGE_SEGMENT_BYTES, MIN_BLOCK_BYTES, Block, FreeList, PoolKey
from scaling.trace.allocator.caching import CachingAllocator
from strategies.units import round_up

_SEGMENT_ADDRESSES = LARGE_SEGMENT_BYTES << 24
"""Addresses of one segment: in practice without end. torch takes 9/8 of the device's memory and, should these be used
up, begins another segment. A multiple of both page sizes, so that pages align in every segment."""


@final
class ExpandableSegments(CachingAllocator):
    """``expandable_segments:True``: free memory at the end of a segment grows; no new segment is asked for."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self._unmapped: dict[PoolKey, list[Block]] = defaultdict(list)

    def release_cached(self) -> None:
        for free_list in list(self._free.values()):
            for block in free_list:
                self._unmap(block)

    def _best_fit(self, free_list: FreeList, size: int) -> Block | None:
        candidates = free_list.at_least(size)
        best = next(candidates, None)
        if best is None:
            return None
        for block in candidates:  # a block that can still grow counts with the size it can grow to
            if _growable_bytes(block) >= _growable_bytes(best):
                break
            best = block
        return best

    def _should_split(self, block: Block, rest_bytes: int) -> bool:
        return rest_bytes >= MIN_BLOCK_BYTES

    def _ask_driver(self, pool: PoolKey, size: int) -> Block | None:
        block: Block | None = self._first_range_with_room(pool, size)
        if block is not None and not block.is_mapped:
            block = self._map(block, min(block.num_bytes, size))
        while block is not None and block.num_bytes < size:
            rest = block.next
            assert rest is not None
            block = self._map(rest, min(size - block.num_bytes, rest.num_bytes))
        if block is not None:
            self._free[pool].remove(block)
        return block

    def _first_range_with_room(self, pool: PoolKey, size: int) -> Block:
        """Return the first block of the lowest run of free and unmapped blocks that holds ``size`` addresses."""
        for unmapped in sorted(self._unmapped[pool], key=lambda block: block.address):
            before = unmapped.previous
            start = before if before is not None and before.is_free else unmapped
            if _free_run_bytes(start, enough=size) >= size:
                return start
        segment = Block(pool=pool, address=self._next_address, num_bytes=_SEGMENT_ADDRESSES, is_mapped=False)
        self._next_address += _SEGMENT_ADDRESSES
        self._unmapped[pool].append(segment)
        return segment

    def _map(self, block: Block, size: int) -> Block | None:
        """Give memory to the first ``size`` addresses of an unmapped block, in whole pages.

        Returns the free block that they become part of, or None where the driver has too little.
        """
        num_bytes = round_up(size, block.pool.page_bytes)
        if not self._reserve(num_bytes):
            return None
        self._unmapped[block.pool].remove(block)
        if num_bytes < block.num_bytes:
            self._unmapped[block.pool].append(block.cut(num_bytes))
        block.is_mapped = True
        merged = self._merged(block)
        self._free[block.pool].add(merged)
        return merged

    def _unmap(self, block: Block) -> None:
        """Take the memory from the whole pages inside a free block; pages used in part keep theirs."""
        page = block.pool.page_bytes
        start, end = round_up(block.address, page), block.end // page * page
        if end <= start:
            return
        free_list = self._free[block.pool]
        free_list.remove(block)
        self.reserved_bytes -= end - start
        if end < block.end:
            free_list.add(block.cut(end - block.address))
        if start > block.address:
            first, block = block, block.cut(start - block.address)
            free_list.add(first)
        block.is_mapped = False
        self._unmapped[block.pool].append(self._merged(block))

    def _forget(self, block: Block) -> None:
        if block.is_mapped:
            super()._forget(block)
        else:
            self._unmapped[block.pool].remove(block)


def _growable_bytes(block: Block) -> int:
    after = block.next
    return block.num_bytes + (after.num_bytes if after is not None and not after.is_mapped else 0)


def _free_run_bytes(block: Block, *, enough: int) -> int:
    """Return the bytes of consecutive free or unmapped blocks from ``block`` on; stops counting at ``enough``."""
    total = 0
    current: Block | None = block
    while current is not None and current.is_free and total < enough:
        total += current.num_bytes
        current = current.next
    return total
