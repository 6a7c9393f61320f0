"""`Stopwatch`: the fastest of several repetitions, on the slowest rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

FEWEST_REPEATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Times work on one rank's device, while the other ranks do the same.

    The fastest repetition counts: what disturbs a measurement only ever makes it slower.
    """

    device: torch.device
    rank: int
    num_ranks: int
    hurry_at: float
    """`time.monotonic` after which everything is repeated twice only, so that a busy machine takes a minute or two."""

    def seconds(self, action: Callable[[], object], *, repeats: int = 5, warm_up: int = 1) -> float:
        """Return the seconds of ``action``, which may be a collective: all ranks repeat it equally often."""
        repeats = self.repeats(repeats)
        for _ in range(warm_up):
            action()
        self._wait()
        fastest = float("inf")
        for _ in range(repeats):
            self._meet()
            start = time.perf_counter()
            action()
            self._wait()
            fastest = min(fastest, time.perf_counter() - start)
        return self.slowest(fastest)

    def repeats(self, wanted: int) -> int:
        """Return how often to repeat, the same on all ranks: ``wanted``, or as few as possible when time is short."""
        is_late = wanted > FEWEST_REPEATS and self.slowest(time.monotonic()) > self.hurry_at
        return FEWEST_REPEATS if is_late else wanted

    def slowest(self, value: float) -> float:
        """Return the largest value of all ranks."""
        if self.num_ranks == 1:
            return value
        largest = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _meet(self) -> None:
        if self.num_ranks > 1:
            dist.barrier()
        self._wait()
