"""Replay a trace through the allocator: what it would reserve on a GPU, and where it would run out of memory."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.storage_log import EventKind
from scaling.trace.allocator.blocks import Block
from scaling.trace.allocator.caching import CachingAllocator, DriverMemoryExhausted, FixedSegments
from scaling.trace.allocator.expandable import ExpandableSegments
from scaling.trace.log import Section, TraceLog
from strategies.errors import ScalingError


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The request that could not be served."""

    section: Section
    op: str
    requested_bytes: int
    allocated_bytes: int
    """Held by tensors at that moment."""
    reserved_bytes: int
    """Held by the allocator at that moment, after it gave back what it could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionPeak:
    """Highest values inside one section, as ``torch.cuda`` reports them after ``reset_peak_memory_stats``."""

    section: Section
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What the caching allocator counts over a trace."""

    sections: tuple[SectionPeak, ...]
    """In order; up to the section that ran out of memory."""
    num_retries: int
    """How often cached memory was given back to serve a request."""
    out_of_memory: OutOfMemory | None

    @property
    def peak_allocated_bytes(self) -> int:
        """As ``torch.cuda.max_memory_allocated``: every tensor rounded up to its block."""
        return max((peak.allocated_bytes for peak in self.sections), default=0)

    @property
    def peak_reserved_bytes(self) -> int:
        """As ``torch.cuda.max_memory_reserved``: without device context and what libraries allocate for themselves."""
        return max((peak.reserved_bytes for peak in self.sections), default=0)

    def at_step(self, step: int) -> tuple[SectionPeak, ...]:
        """Return the sections of one optimizer step."""
        return tuple(peak for peak in self.sections if peak.section.step == step)


def replay(log: TraceLog, *, expandable_segments: bool = False, capacity_bytes: int | None = None) -> ReplayResult:
    """Return what the CUDA caching allocator reserves for the allocations and frees of ``log``.

    `expandable_segments`: as in ``PYTORCH_CUDA_ALLOC_CONF``. `capacity_bytes`: device memory that the allocator can
    get (total minus device context and what other libraries hold); None for no limit. A request beyond it ends the
    replay with `ReplayResult.out_of_memory`.
    """
    if capacity_bytes is not None and capacity_bytes <= 0:
        raise ScalingError(f"capacity_bytes={capacity_bytes} must be above zero; give the usable bytes of the device")
    make = ExpandableSegments if expandable_segments else FixedSegments
    return _Replay(log, make(capacity_bytes=capacity_bytes)).run()


class _Replay:
    def __init__(self, log: TraceLog, allocator: CachingAllocator) -> None:
        self.log, self.allocator = log, allocator
        self.blocks: dict[int, Block] = {}
        self.sizes: dict[int, int] = {}
        self.streams = log.stream.tolist()
        self.events = list(
            zip(log.kind.tolist(), log.storage.tolist(), log.change_bytes.tolist(), log.op.tolist(), strict=True)
        )

    def run(self) -> ReplayResult:
        peaks: list[SectionPeak] = []
        failure: OutOfMemory | None = None
        for section, first, end in self.log.ranges():
            peak, failure = self.section(section, first, end)
            peaks.append(peak)
            if failure is not None:
                break
        return ReplayResult(sections=tuple(peaks), num_retries=self.allocator.num_retries, out_of_memory=failure)

    def section(self, section: Section, first: int, end: int) -> tuple[SectionPeak, OutOfMemory | None]:
        self.allocator.reset_peaks()
        failure = None
        for kind, storage, change, op in self.events[first:end]:
            try:
                self.apply(kind, storage, change)
            except DriverMemoryExhausted as error:
                failure = self.failure(section, self.log.ops[op], error.requested_bytes)
                break
        peak = SectionPeak(
            section=section,
            allocated_bytes=self.allocator.peak_allocated_bytes,
            reserved_bytes=self.allocator.peak_reserved_bytes,
        )
        return peak, failure

    def apply(self, kind: int, storage: int, change: int) -> None:
        """Allocate, free, or for a resize do both: the new memory first, as ``resize_`` does."""
        before = self.blocks.pop(storage, None)
        size = 0 if kind == EventKind.FREE else self.sizes.get(storage, 0) + change
        self.sizes[storage] = size
        if size:
            self.blocks[storage] = self.allocator.allocate(size, stream=self.streams[storage])
        if before is not None:
            self.allocator.free(before)

    def failure(self, section: Section, op: str, requested_bytes: int) -> OutOfMemory:
        return OutOfMemory(
            section=section,
            op=op,
            requested_bytes=requested_bytes,
            allocated_bytes=self.allocator.allocated_bytes,
            reserved_bytes=self.allocator.reserved_bytes,
        )
