"""Ranks agree before and after files are written; a rank that does not come is an error, not a wait without an end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from scaling.checkpoint.errors import CheckpointError
from scaling.errors import one_line
from strategies.errors import ScalingError

T = TypeVar("T")

WRITING_S = 6 * 3600.0
"""How long the first rank that has written its files waits for the last one; a rank that ends is noticed at once."""


class Meeting:
    """A group of all ranks on the CPU: what is said in it needs no device memory and disturbs no training traffic.

    Every rank must make one, at the same point of the program.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        # A group of one has nobody to wait for, and simulated groups know no gloo.
        patience = timedelta(seconds=max(timeout_s, WRITING_S))
        self._group = dist.new_group(backend="gloo", timeout=patience) if self.world_size > 1 else None

    def arrive(self, purpose: str) -> None:
        """Wait for all ranks.

        Raises:
            CheckpointError: some rank has not come in time: it does not know that there is something to do.
        """
        if self._group is None:
            return
        try:
            # Rank 0 names the ranks that are missing; the others learn by their own timeout.
            dist.monitored_barrier(self._group, timeout=timedelta(seconds=self._timeout_s), wait_all_ranks=True)
        except RuntimeError as error:
            raise CheckpointError(
                f"not every rank came to {purpose} within {self._timeout_s:g} s: {one_line(error, max_chars=200)}; "
                f"call it on every rank, not on rank 0 alone"
            ) from error

    def together(self, action: Callable[[], T]) -> T:
        """Return what ``action`` returns on this rank; it must not communicate.

        Raises:
            ScalingError: it raised one on some rank; every rank raises that of the lowest such rank.
        """
        mine: list[T] = []
        self.gather(lambda: mine.append(action()))  # what it returns stays here: it may be an open file
        return mine[0]

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Return what ``action`` returns on every rank, by rank; it must not communicate.

        Raises:
            ScalingError: it raised one on some rank; every rank raises that of the lowest such rank.
        """
        outcome: tuple[ScalingError | None, T | None]
        try:
            outcome = None, action()
        except ScalingError as error:
            outcome = error, None
        except OSError as error:  # the other ranks would wait for one that ends here
            outcome = CheckpointError(f"the operating system refuses: {one_line(error)}"), None
        outcomes: list[Any] = [outcome]
        if self._group is not None:
            outcomes = [None] * self.world_size
            dist.all_gather_object(outcomes, outcome, group=self._group)
        if failure := next((error for error, _ in outcomes if error is not None), None):
            raise failure
        return [result for _, result in outcomes]

    def on_main(self, action: Callable[[], T]) -> T:
        """Return on every rank what ``action`` returns on rank 0, the only one that runs it.

        Raises:
            ScalingError: it raised one; on every rank.
        """
        return self.gather(lambda: action() if self.rank == 0 else None)[0]  # type: ignore[return-value]
