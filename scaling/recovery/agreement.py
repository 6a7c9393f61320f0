"""What the hosts of all ranks tell each other once a step: whether one ran out of memory or was asked to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
import torch.distributed as dist

from scaling.checkpoint.meeting import Meeting
from scaling.recovery.failure import Failure

FAILED, STOP = 1, 2


@final
class StepAgreement(Meeting):
    """One number by one collective of the hosts, which a device that is still computing does not wait for."""

    def __init__(self, *, timeout_s: float, is_asked_to_stop: Callable[[], bool]) -> None:
        super().__init__(timeout_s=timeout_s)
        self._is_asked_to_stop = is_asked_to_stop
        self.stops = False
        """Whether any rank was asked to stop when all last agreed; the same on all ranks."""

    def any_failed(self, failed: bool) -> bool:
        """Return whether any rank failed; a collective."""
        said = self._union(FAILED * failed | STOP * self._is_asked_to_stop())
        self.stops = bool(said & STOP)
        return bool(said & FAILED)

    def failures(self, mine: Failure | None) -> Sequence[Failure]:
        """Return the failures of all ranks, by rank; a collective."""
        by_rank: list[Failure | None] = self.gather(lambda: mine)
        return [each for each in by_rank if each is not None]

    def _union(self, bits: int) -> int:
        if self._group is None:
            return bits
        said = torch.tensor(bits)
        dist.all_reduce(said, op=dist.ReduceOp.BOR, group=self._group)
        return int(said)
