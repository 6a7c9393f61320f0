"""The meter that follows every storage: exact bytes by phase and cause on a CPU, and the split on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from scaling.meter.attribution import Attribution
from scaling.meter.measurement import Measurement
from scaling.meter.sweep import Stretch, sweep
from scaling.meter.timeline import Timeline, timeline
from scaling.ownership import Owners
from scaling.storage_log import StorageLog
from strategies.estimate import MemoryProfile, Phase


class StorageMeter:
    """Follows storages between `start` and `stop`, in the thread that started it and the autograd threads it uses.

    Events between two phases belong to the phase before them; those before the first phase to that one.
    """

    def __init__(
        self, *, rank: int = 0, world_size: int = 1, device_type: str = "cpu", vocab_size: int | None = None
    ) -> None:
        """`device_type`: where the model is; `vocab_size`: width of the logits, to tell them from activations."""
        self._rank, self._world_size = rank, world_size
        self.log = StorageLog(phase=Phase.INITIALISE, observer=self._observe)
        self._attribution = Attribution(self.log, device_type=device_type, vocab_size=vocab_size)
        self._owners: list[Owners] = []
        self._stretches: list[Stretch] = []
        self._open: list[Phase] = []
        self._step = 0
        self._running = False

    def start(self) -> None:
        """Begin to follow storages in this thread."""
        if not self._running:
            self.log.__enter__()
            self._running = True

    def stop(self) -> None:
        """Stop following: later changes are not measured, and operators run at full speed again."""
        if self._running:
            try:
                self._ask_owners()
                self._extend_last()
            finally:  # owners that a failed run left half made must not keep every operator followed
                self._running = False
                self.log.__exit__(None, None, None)
                self.log.close()

    def attach(self, owners: Owners) -> None:
        self._owners.append(owners)
        if self._running:
            self._ask_owners()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        if not self._running:
            yield
            return
        self._open.append(phase)
        self._begin(phase)
        try:
            yield
        finally:
            self._open.pop()
            self._end(phase)

    def measurement(self) -> Measurement:
        self._extend_last()
        spans = sweep(self.log, self._attribution, self._stretches)
        return Measurement(
            rank=self._rank,
            world_size=self._world_size,
            spans=spans,
            num_operators=self.log.num_ops,
            num_late_frees=self.log.num_late_frees,
        )

    def timeline(self) -> Timeline:
        """Return device bytes by cause over time, for a picture."""
        if self._running:
            self._ask_owners()
        self._extend_last()
        return timeline(self.log, self._attribution, self._stretches)

    def profile(self) -> MemoryProfile:
        return self.measurement().device()

    def _begin(self, phase: Phase) -> None:
        self._ask_owners()
        self._extend_last()
        self.log.phase = phase
        first = self._stretches[-1].last if self._stretches else 0
        self._stretches.append(Stretch(phase=phase, step=self._step, first=first, last=first))

    def _end(self, phase: Phase) -> None:
        if not self._running:
            return
        self._ask_owners()
        self._extend_last()
        if phase is Phase.OPTIMIZER_STEP:
            self._step += 1
        if self._open:  # this phase was inside another one, which goes on
            self._begin(self._open[-1])

    def _extend_last(self) -> None:
        if self._running and self._stretches:
            self._stretches[-1] = replace(self._stretches[-1], last=len(self.log.events))

    def _ask_owners(self) -> None:
        for owners in reversed(self._owners):  # the engine, attached last, knows better than the model it took over
            self._attribution.claim(owners())

    def _observe(self, func: Any, args: tuple[Any, ...], _: Any) -> None:
        if self._attribution.wants_owners:
            self._ask_owners()
        self._attribution.observe(func, args)
