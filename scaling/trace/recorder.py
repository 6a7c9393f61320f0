"""`Recorder`: collects a `TraceLog` while training steps run, with the cause and the stream of every storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from scaling.meter.attribution import Attribution
from scaling.ownership import Cause, Owned, Owners, Place
from scaling.storage_log import StorageLog
from scaling.trace.kernels import CUDA_SCRATCH
from scaling.trace.log import CAUSES, Row, Section, StorageUse, TraceLog, build_log
from strategies.estimate import Phase

_SCRATCH_DEVICE = "scratch"


class Recorder:
    """A storage log, who owns what, and where sections begin."""

    def __init__(self, *, device: str, emulated: str, has_padding: bool = False, vocab_size: int | None = None) -> None:
        """`device`: of the tensors (``meta`` or ``cpu``). `emulated`: whose kernels run (``cuda`` or ``cpu``).
        `has_padding`: what a question about tensors without data, such as ``mask.all()``, is answered."""
        self.device = device
        self.emulated = emulated
        self.log = StorageLog(
            phase=Phase.INITIALISE,
            scalar_answers={torch.bool: not has_padding, torch.float32: 1.0},
            scratch=CUDA_SCRATCH if emulated == "cuda" else None,
            observer=self._observe,
        )
        # A CPU's device is its host: what stands beside the tensors without data counts, unless it is offloaded.
        self._attribution = Attribution(
            self.log, device_type=device, vocab_size=vocab_size, cpu_is_device=emulated == "cpu"
        )
        self._sections = [Section(0, 0, Phase.INITIALISE)]
        self._ends: list[int] = []
        self._num_seen = 0
        self._streams: dict[int, int] = {}
        self.owners: list[Owners] = []
        """Asked who holds what when sections begin and end, and when an engine makes something large."""
        self.current_stream = 0
        """Stream on which storages are allocated from now on."""

    @contextmanager
    def section(self, section: Section) -> Iterator[None]:
        """Count what happens inside for ``section``; events from its end to the next section still belong to it."""
        self.ask_owners()
        self.begin(section)
        yield
        self.ask_owners()

    def ask_owners(self) -> None:
        """Claim what the owners hold now."""
        for owners in self.owners:
            self._attribution.claim(owners())

    def begin(self, section: Section) -> None:
        """Count what happens from now on for ``section``."""
        if section != self._sections[-1]:
            self._ends.append(len(self.log.events))
            self._sections.append(section)
        self.log.phase = section.phase

    def claim(self, owners: Iterable[Owned]) -> None:
        """Note who holds which tensor; the first to claim a storage names its cause."""
        self._attribution.claim(owners)

    def hold(self, tensor: torch.Tensor, cause: Cause, *, stream: int = 0) -> torch.Tensor:
        """Return ``tensor`` after noting what it is for and on which stream it was allocated."""
        self._attribution.claim([Owned(cause, tensor)])
        if stream:
            self._streams.update(dict.fromkeys(self.log.adopt([tensor]), stream))
        return tensor

    def result(self) -> TraceLog:
        """Return the log of what was recorded on the device; what lives on the host besides is left out."""
        found = {number: self._use(number) for number in range(len(self.log.storages))}
        uses = {number: use for number, use in found.items() if use is not None}
        first, rows = 0, []
        for end in (*self._ends, len(self.log.events)):
            events = self.log.events[first:end]
            rows.append([Row(int(e.kind), e.storage, e.change_bytes, e.op) for e in events if e.storage in uses])
            first = end
        return build_log(self._sections, rows, uses)

    def _use(self, number: int) -> StorageUse | None:
        """Return what a storage is for; None where it is not on the device."""
        device = self.log.storages[number].device
        if device == _SCRATCH_DEVICE:
            return StorageUse(CAUSES.index(Cause.ACTIVATIONS), 0)
        found = self._attribution.cause(number)
        if found is None:
            return None
        cause, place = found
        stream = self._streams.get(number, 0)
        if stream and cause is Cause.ACTIVATIONS:  # no module computes there
            cause = Cause.COMMUNICATION_BUCKETS
        if place is Place.HOST:
            return None
        return StorageUse(CAUSES.index(cause), stream)

    def _observe(self, func: Any, args: tuple[Any, ...], _: Any) -> None:
        if self._attribution.wants_owners:
            self.ask_owners()
        self._attribution.observe(func, args)
        if self.current_stream:
            self._streams.update(dict.fromkeys(range(self._num_seen, len(self.log.storages)), self.current_stream))
        self._num_seen = len(self.log.storages)
