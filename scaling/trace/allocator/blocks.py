"""Blocks and free lists of the CUDA caching allocator model."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from strategies.units import MIB, round_up

# Source of the five sizes: torch 2.13.0, c10/core/AllocatorConfig.h (kMinBlockSize, kSmallSize, kSmallBuffer,
# large_segment_size, kMinLargeAlloc, kRoundLarge). They have not changed since torch 1.0.
MIN_BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_OWN_SEGMENT_BYTES = 10 * MIB
OWN_SEGMENT_MULTIPLE_BYTES = 2 * MIB


class PoolKey(NamedTuple):
    """Memory is never shared between streams, nor between small and large requests."""

    stream: int
    is_small: bool

    @property
    def page_bytes(self) -> int:
        """Bytes by which an expandable segment of this pool grows."""
        return SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES


@dataclass(slots=True, kw_only=True, eq=False)
class Block:
    """A range of one segment: in use, free, or (expandable segments only) address space without memory."""

    pool: PoolKey
    address: int
    num_bytes: int
    is_free: bool = True
    is_mapped: bool = True
    previous: Block | None = None
    next: Block | None = None

    @property
    def end(self) -> int:
        return self.address + self.num_bytes

    @property
    def is_whole_segment(self) -> bool:
        return self.previous is None and self.next is None

    def cut(self, num_bytes: int) -> Block:
        """Shorten this block to ``num_bytes`` and return the rest, linked in behind it."""
        rest = Block(
            pool=self.pool,
            address=self.address + num_bytes,
            num_bytes=self.num_bytes - num_bytes,
            is_mapped=self.is_mapped,
            previous=self,
            next=self.next,
        )
        if self.next is not None:
            self.next.previous = rest
        self.num_bytes, self.next = num_bytes, rest
        return rest

    def absorb_next(self) -> None:
        """Grow over the following block, which ceases to exist."""
        absorbed = self.next
        assert absorbed is not None
        self.num_bytes += absorbed.num_bytes
        self.next = absorbed.next
        if absorbed.next is not None:
            absorbed.next.previous = self


@dataclass(slots=True)
class FreeList:
    """Free blocks of one pool, by size and then by address, as the allocator's own set orders them."""

    _entries: list[tuple[int, int, Block]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Block]:
        return (block for _, _, block in list(self._entries))

    def add(self, block: Block) -> None:
        insort(self._entries, (block.num_bytes, block.address, block))

    def remove(self, block: Block) -> None:
        """Take out ``block``; its size must be what it was when added."""
        index = bisect_left(self._entries, (block.num_bytes, block.address))
        assert self._entries[index][2] is block
        self._entries.pop(index)

    def at_least(self, num_bytes: int) -> Iterator[Block]:
        """Yield free blocks of ``num_bytes`` or more, smallest first."""
        start = bisect_left(self._entries, (num_bytes,))
        return (self._entries[index][2] for index in range(start, len(self._entries)))


def rounded_request(num_bytes: int) -> int:
    """Return the bytes that a request takes up: the next multiple of 512."""
    return max(MIN_BLOCK_BYTES, round_up(num_bytes, MIN_BLOCK_BYTES))


def segment_bytes(rounded_bytes: int) -> int:
    """Return the size of the segment that is asked from the driver for a request no free block can serve."""
    if rounded_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(rounded_bytes, OWN_SEGMENT_MULTIPLE_BYTES)
