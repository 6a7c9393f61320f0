"""The interfaces that engines and training see, and the meter that measures nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from scaling.meter.measurement import Measurement
from scaling.ownership import Owners
from strategies.estimate import MemoryProfile, Phase


class PhaseMeter(Protocol):
    """What an engine tells: who holds which tensor, and which phase runs."""

    def attach(self, owners: Owners) -> None:
        """Ask `owners` at every phase boundary from now on who holds which tensor."""

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Return a context in which memory counts for `phase`; leaving an optimizer step ends the step."""


class Meter(PhaseMeter, Protocol):
    """Measures memory by phase and cause while it is started; outside, every method returns at once."""

    def start(self) -> None:
        """Begin to measure; what exists already counts once its owners are attached or it is used."""

    def stop(self) -> None:
        """End the measurement; what was measured stays."""

    def measurement(self) -> Measurement:
        """Return every span measured so far."""

    def profile(self) -> MemoryProfile:
        """Return the highest moment of every phase on the device."""


class NoMeter:
    """A meter that is never started: costs nothing, measures nothing."""

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def attach(self, owners: Owners) -> None:
        """Owners are not asked."""

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        yield

    def measurement(self) -> Measurement:
        return Measurement(rank=0, world_size=1, spans=())

    def profile(self) -> MemoryProfile:
        return MemoryProfile(phases=())
