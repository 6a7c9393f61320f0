"""The meter of the CUDA caching allocator: exact totals, allocated and reserved, at almost no cost.

The split by cause is what owners hold; the rest of the peak counts for the working memory of the phase. For the full
split on a GPU use `StorageMeter`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from scaling.meter.measurement import Measurement, Span
from scaling.ownership import Cause, Owners, Place
from scaling.storage_log import plain_tensors
from strategies.estimate import CauseBytes, MemoryProfile, Phase

_WORKING_MEMORY = {
    Phase.INITIALISE: Cause.OTHER,
    Phase.FORWARD: Cause.ACTIVATIONS,
    Phase.BACKWARD: Cause.ACTIVATIONS,
    Phase.OPTIMIZER_STEP: Cause.STEP_TEMPORARIES,
    Phase.EVALUATION: Cause.ACTIVATIONS,
    Phase.SAVE: Cause.OTHER,
}

OwnedBytes = dict[Place, dict[Cause, int]]


@dataclass(slots=True)
class _Open:
    """A phase that is not finished; its peaks so far."""

    phase: Phase
    owned: OwnedBytes
    allocated: int = 0
    reserved: int = 0

    def fold(self, device: torch.device) -> None:
        """Keep the peaks since the counters were last set back, and set them back."""
        self.allocated = max(self.allocated, torch.cuda.max_memory_allocated(device))
        self.reserved = max(self.reserved, torch.cuda.max_memory_reserved(device))
        torch.cuda.reset_peak_memory_stats(device)


@dataclass(slots=True, kw_only=True)
class CudaMeter:
    """Reads the allocator's peaks at phase boundaries; sets them back (`torch.cuda.reset_peak_memory_stats`)."""

    device_id: torch.device
    rank: int = 0
    world_size: int = 1
    record_history: bool = False
    """Also record every allocation, for `dump_snapshot`."""
    _owners: list[Owners] = field(default_factory=list)
    _spans: list[Span] = field(default_factory=list)
    _open: list[_Open] = field(default_factory=list)
    _step: int = 0
    _running: bool = False

    def start(self) -> None:
        """Set the allocator's peaks back; start its history when asked for."""
        self._running = True
        torch.cuda.reset_peak_memory_stats(self.device_id)
        if self.record_history:
            torch.cuda.memory._record_memory_history()

    def stop(self) -> None:
        self._running = False
        if self.record_history:
            torch.cuda.memory._record_memory_history(enabled=None)

    def attach(self, owners: Owners) -> None:
        self._owners.append(owners)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        if not self._running:
            yield
            return
        if self._open:
            self._open[-1].fold(self.device_id)
        self._open.append(_Open(phase, self._owned()))
        torch.cuda.reset_peak_memory_stats(self.device_id)
        try:
            yield
        finally:
            self._close(self._open.pop())

    def measurement(self) -> Measurement:
        return Measurement(rank=self.rank, world_size=self.world_size, spans=tuple(self._spans))

    def profile(self) -> MemoryProfile:
        return self.measurement().device()

    def dump_snapshot(self, path: Path) -> None:
        """Write the allocator's history, for https://pytorch.org/memory_viz."""
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]

    def _close(self, done: _Open) -> None:
        done.fold(self.device_id)
        if self._open:
            self._open[-1].allocated = max(self._open[-1].allocated, done.allocated)
            self._open[-1].reserved = max(self._open[-1].reserved, done.reserved)
        at_end = self._owned()
        working = _WORKING_MEMORY[done.phase]
        now = torch.cuda.memory_allocated(self.device_id)
        span = Span(
            phase=done.phase,
            step=self._step,
            device=split_peak(done.allocated, done.owned[Place.DEVICE], at_end[Place.DEVICE], working=working),
            host=_causes(_larger(done.owned[Place.HOST], at_end[Place.HOST])),
            device_end=split_peak(now, at_end[Place.DEVICE], at_end[Place.DEVICE], working=working),
            host_end=_causes(at_end[Place.HOST]),
            peak_reserved_bytes=done.reserved,
        )
        self._spans.append(span)
        if done.phase is Phase.OPTIMIZER_STEP:
            self._step += 1

    def _owned(self) -> OwnedBytes:
        owned: OwnedBytes = {place: {} for place in Place}
        seen: set[int] = set()
        for owners in self._owners:
            for item in owners():
                for tensor in plain_tensors(item.tensor):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in seen:
                        seen.add(storage._cdata)
                        place = Place.DEVICE if tensor.device.type == "cuda" else Place.HOST
                        owned[place][item.cause] = owned[place].get(item.cause, 0) + storage.nbytes()
        return owned


def split_peak(peak_bytes: int, at_start: dict[Cause, int], at_end: dict[Cause, int], *, working: Cause) -> CauseBytes:
    """Return a peak split into what owners hold and the rest, which counts for `working`.

    Owners are asked at the start and at the end of a phase. The larger of the two is taken for each cause if that
    fits under the peak (states that appear in the phase), else the smaller (buffers that were released).
    """
    owned = _larger(at_start, at_end)
    if sum(owned.values()) > peak_bytes:
        owned = {cause: min(at_start.get(cause, 0), at_end.get(cause, 0)) for cause in {*at_start, *at_end}}
    rest = peak_bytes - sum(owned.values())
    return _causes({**owned, working: owned.get(working, 0) + rest})


def _larger(first: dict[Cause, int], second: dict[Cause, int]) -> dict[Cause, int]:
    return {cause: max(first.get(cause, 0), second.get(cause, 0)) for cause in {*first, *second}}


def _causes(by_cause: dict[Cause, int]) -> CauseBytes:
    return CauseBytes(**{cause.value: num_bytes for cause, num_bytes in by_cause.items()})
