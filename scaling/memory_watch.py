"""Meters the first optimizer steps of a run and then gets out of the way: following storages slows every operator."""

from __future__ import annotations

from typing import final

import torch
import torch.distributed as dist

from scaling.launch_env import LaunchEnvironment
from scaling.meter import CudaMeter, Measurement, Meter, NoMeter, StorageMeter, highest


@final
class MemoryWatch:
    """A meter that is stopped after ``num_steps``; on CUDA the allocator's own peak goes on counting."""

    def __init__(
        self, *, device: torch.device, launch: LaunchEnvironment, num_steps: int, vocab_size: int | None
    ) -> None:
        self._device = device
        self._num_steps = num_steps
        self._peak_bytes = self._peak_reserved_bytes = 0
        self._is_metering = num_steps > 0
        self.meter: Meter = NoMeter()
        if num_steps and device.type == "cuda":
            self.meter = CudaMeter(device_id=device, rank=launch.rank, world_size=launch.world_size)
        elif num_steps:
            self.meter = StorageMeter(rank=launch.rank, world_size=launch.world_size, vocab_size=vocab_size)

    def steps_done(self, num_steps: int) -> None:
        """Take note of the peak after ``num_steps`` steps; end the metering when that is enough."""
        if self._is_metering:
            measurement = self.meter.measurement()
            self._peak_bytes = measurement.peak_allocated_bytes
            self._peak_reserved_bytes = measurement.peak_reserved_bytes or 0
            if num_steps >= self._num_steps:
                self.stop()

    def stop(self) -> None:
        """End the metering."""
        if self._is_metering:
            self._is_metering = False
            self.meter.stop()

    def peak_bytes(self) -> int:
        """Return the highest number of allocated bytes on this rank so far; 0 where nothing counts them."""
        if self._device.type == "cuda":
            return max(self._peak_bytes, torch.cuda.max_memory_allocated(self._device))
        return self._peak_bytes

    def peak_reserved_bytes(self) -> int:
        """Return the most that the caching allocator of this rank has held so far; 0 on a CPU, which has none."""
        if self._device.type == "cuda":
            return max(self._peak_reserved_bytes, torch.cuda.max_memory_reserved(self._device))
        return 0

    def highest_of_all_ranks(self) -> Measurement | None:
        """Return the measurement of the rank with the highest peak, None if nothing was metered. A collective."""
        mine = self.meter.measurement() if self._num_steps else None
        all_ranks: list[Measurement | None] = [None] * dist.get_world_size()
        dist.all_gather_object(all_ranks, mine)
        measured = [measurement for measurement in all_ranks if measurement is not None]
        return highest(measured) if measured else None
