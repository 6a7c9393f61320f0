"""`HostGuard`: looks at the host's memory before a run takes much of it: loading, saving, exporting.

What surely does not fit is refused in words; the kernel would end a rank by signal 9 without any. What may not fit is a
warning: forecasts are of plans, and others take and give memory meanwhile. Memory that cannot be read stops nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import final

from scaling.checkpoint.errors import SaveFailed
from scaling.errors import TrainingError
from scaling.recovery.killed import advice
from scaling.train_config import TrainConfig
from strategies.decision import Decision
from strategies.detect import HostMemory, free_swap_bytes, host_memory
from strategies.host_needs import host_moments
from strategies.memory.host import SAVE_PIECE_BYTES, built_element_bytes
from strategies.units import format_bytes

logger = logging.getLogger(__name__)
KILLED = "the kernel would kill a rank"


@final
class HostGuard:
    """Of one rank, which speaks for its node; its methods do not communicate."""

    def __init__(
        self,
        decision: Decision,
        config: TrainConfig,
        *,
        ranks_here: int,
        memory: Callable[[], HostMemory] = host_memory,
        swap: Callable[[], int] = free_swap_bytes,
    ) -> None:
        """``ranks_here``: processes of the run on this machine. ``memory``, ``swap``: what reads the host's."""
        self._decision, self._config = decision, config
        self._ranks_here = ranks_here
        self._memory, self._swap = memory, swap

    def before_load(self, *, is_built: bool) -> None:
        """Look before the ranks make the model. ``is_built``: in memory, rather than mapped from files.

        Raises:
            TrainingError: it surely does not fit, a whole one on every rank.
        """
        built = self._decision.num_params * built_element_bytes(self._decision.job.precision)
        if is_built and (problem := self._lacks(self._ranks_here * built)):
            raise TrainingError(f"loading takes a whole model on every rank, {problem}: {KILLED}; {self._advice()}")
        moments = host_moments(self._decision)
        highest = max(moments, key=lambda moment: moment.growth_bytes, default=None)
        if highest is not None and (problem := self._lacks(highest.growth_bytes)):
            logger.warning(
                "a rank may be killed for lack of memory %s: the plan takes another %s (in all: %s); %s",
                highest.when,
                problem,
                highest.by_cause(),
                self._advice(),
            )

    def before_save(self, copied_bytes: int) -> None:
        """Look before the ranks write a checkpoint, each through copies of ``copied_bytes`` at a time.

        Raises:
            SaveFailed: they surely do not fit.
        """
        if problem := self._lacks(self._ranks_here * copied_bytes):
            raise SaveFailed(f"writing a checkpoint takes {problem}: {KILLED}. Nothing was written; {self._advice()}")

    def before_export(self, *, checkpoint: Path | None) -> None:
        """Look before the main rank writes the model. ``checkpoint``: of the last step; None where there is none.

        Raises:
            TrainingError: it surely does not fit, and nothing is lost by not trying.
        """
        problem = self._lacks(self._exported_bytes())
        if problem is None:
            return
        told = f"writing the model takes {problem}: {KILLED}"
        if checkpoint is None:
            logger.warning("%s; it is tried all the same, since no checkpoint has the last step", told)
            return
        raise TrainingError(
            f"{told}; the run is complete in {checkpoint}: `scaling checkpoint export {checkpoint} --out DIR` writes "
            f"the model where there is more memory"
        )

    def _exported_bytes(self) -> int:
        """Return what the main rank holds beside the model; nothing on a CPU, which writes tensors as they are."""
        host = self._decision.estimate.host
        if host is None or self._decision.cluster.gpu.is_cpu:
            return 0
        pieces = self._decision.cluster.ranks_per_node * SAVE_PIECE_BYTES
        return max(host.save.total_bytes - host.steady.total_bytes - pieces, 0)

    def _lacks(self, needed_bytes: int) -> str | None:
        """Return in words that memory does not suffice for so much more; None where it does, or nothing tells."""
        memory = self._memory()
        free = memory.free_bytes + self._swap()
        if needed_bytes <= free:
            return None
        return (
            f"{format_bytes(needed_bytes)} of host memory, and {format_bytes(free)} of "
            f"{format_bytes(memory.limit_bytes)} ({memory.of}) are free"
        )

    def _advice(self) -> str:
        needed = [moment.total_bytes for moment in host_moments(self._decision)]
        more_than = max(self._memory().limit_bytes, *needed, 0)
        return f"to take less: {'; '.join(advice(self._decision, self._config, needed_bytes=more_than))}"
