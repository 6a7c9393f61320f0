"""A model of the CUDA caching allocator: which bytes it asks from the driver for a sequence of requests and frees.

Modelled: rounding, best fit, splitting and merging, small and large pools per stream, fixed and expandable segments,
giving cached segments back before running out of memory. Not modelled: graph pools, `record_stream`, and the settings
``max_split_size_mb``, ``garbage_collection_threshold`` and ``roundup_power2_divisions`` (all off by default).
Source: torch 2.x, c10/cuda/CUDACachingAllocator.cpp (malloc, get_free_block, alloc_block, should_split, free_block,
release_cached_blocks); sizes in c10/core/AllocatorConfig.h of torch 2.13.0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from typing import final

from scaling.trace.allocator.blocks import (
    MIN_BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    Block,
    FreeList,
    PoolKey,
    rounded_request,
    segment_bytes,
)


@dataclass(slots=True)
class DriverMemoryExhausted(Exception):
    """A request for which the driver has no memory, even after all cached segments were given back."""

    requested_bytes: int


class CachingAllocator(ABC):
    """Serves requests like ``torch.cuda``'s allocator and counts what it holds."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        """`capacity_bytes`: memory the driver can give; None for no limit."""
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.num_retries = 0
        self._free: dict[PoolKey, FreeList] = defaultdict(FreeList)
        self._next_address = 0

    def allocate(self, num_bytes: int, *, stream: int = 0) -> Block:
        """Return the block that serves a request of ``num_bytes`` (above zero) on ``stream``.

        Raises:
            DriverMemoryExhausted: ``capacity_bytes`` does not allow it.
        """
        size = rounded_request(num_bytes)
        pool = PoolKey(stream, size <= SMALL_REQUEST_BYTES)
        block = self._take_free_block(pool, size) or self._new_block(pool, size)
        if self._should_split(block, block.num_bytes - size):
            self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.num_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def reset_peaks(self) -> None:
        """Begin to count peaks anew, as ``torch.cuda.reset_peak_memory_stats`` does."""
        self.peak_allocated_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def free(self, block: Block) -> None:
        """Return ``block`` to its pool, merged with its free neighbours."""
        self.allocated_bytes -= block.num_bytes
        block.is_free = True
        self._free[block.pool].add(self._merged(block))

    @abstractmethod
    def release_cached(self) -> None:
        """Give memory that nothing uses back to the driver."""

    @abstractmethod
    def _ask_driver(self, pool: PoolKey, size: int) -> Block | None:
        """Return a free block, on no list, of ``size`` or more that the driver just gave; None where it cannot."""

    @abstractmethod
    def _should_split(self, block: Block, rest_bytes: int) -> bool:
        """Whether the ``rest_bytes`` of ``block`` that the request leaves become a block of their own."""

    def _best_fit(self, free_list: FreeList, size: int) -> Block | None:
        return next(free_list.at_least(size), None)

    def _take_free_block(self, pool: PoolKey, size: int) -> Block | None:
        block = self._best_fit(self._free[pool], size)
        if block is not None:
            self._free[pool].remove(block)
        return block

    def _new_block(self, pool: PoolKey, size: int) -> Block:
        block = self._ask_driver(pool, size)
        if block is None:
            self.num_retries += 1
            self.release_cached()
            block = self._ask_driver(pool, size)
        if block is None:
            raise DriverMemoryExhausted(size)
        return block

    def _reserve(self, num_bytes: int) -> bool:
        if self.capacity_bytes is not None and self.reserved_bytes + num_bytes > self.capacity_bytes:
            return False
        self.reserved_bytes += num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _split(self, block: Block, size: int) -> None:
        self._free[block.pool].add(block.cut(size))

    def _merged(self, block: Block) -> Block:
        """Return what ``block`` becomes with the free blocks on both sides, which leave their lists."""
        before, after = block.previous, block.next
        if after is not None and after.is_free and after.is_mapped == block.is_mapped:
            self._forget(after)
            block.absorb_next()
        if before is not None and before.is_free and before.is_mapped == block.is_mapped:
            self._forget(before)
            before.absorb_next()
            return before
        return block

    def _forget(self, block: Block) -> None:
        self._free[block.pool].remove(block)


@final
class FixedSegments(CachingAllocator):
    """The default: every segment keeps the size it was asked for."""

    def release_cached(self) -> None:
        for free_list in self._free.values():
            for block in free_list:
                if block.is_whole_segment:
                    free_list.remove(block)
                    self.reserved_bytes -= block.num_bytes

    def _ask_driver(self, pool: PoolKey, size: int) -> Block | None:
        num_bytes = segment_bytes(size)
        if not self._reserve(num_bytes):
            return None
        block = Block(pool=pool, address=self._next_address, num_bytes=num_bytes)
        self._next_address += num_bytes
        return block

    def _should_split(self, block: Block, rest_bytes: int) -> bool:
        smallest = MIN_BLOCK_BYTES if block.pool.is_small else SMALL_REQUEST_BYTES + 1
        return rest_bytes >= smallest
