"""torch's profiler over a few optimizer steps, one trace file a rank."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import final

import torch
from torch.profiler import ProfilerActivity, profile

from scaling.errors import one_line
from scaling.watching.step_range import StepRange

logger = logging.getLogger(__name__)


@final
class ProfilerWindow:
    """Profiles the steps of ``steps``; a trace that cannot be written is warned of and does not end the run."""

    def __init__(self, steps: StepRange, *, folder: Path, rank: int) -> None:
        self._steps = steps
        self._path = folder / f"rank-{rank}.pt.trace.json.gz"
        self._rank = rank
        self._profile: profile | None = None
        self._is_new = True

    def before_step(self, step: int) -> None:
        """Start where ``step``, counted from 1, is the first one of the window."""
        if self._is_new and step > self._steps.first and self._rank == 0:
            logger.warning("this run goes on at step %d, so profile_steps=%s profiles nothing", step, self._steps)
        self._is_new = False
        if step == self._steps.first:
            cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._profile = profile(activities=[ProfilerActivity.CPU, *cuda])
            self._profile.start()

    def after_step(self, step: int) -> None:
        """Stop and write the trace where ``step`` is the last one of the window."""
        if self._profile is not None and step == self._steps.last:
            self._profile.stop()
            self._write(self._profile)
            self._profile = None

    def close(self) -> None:
        """Stop where the run has ended inside the window; what was seen of it is not kept."""
        if self._profile is not None:
            with suppress(RuntimeError):
                self._profile.stop()
            self._profile = None

    def _write(self, seen: profile) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            seen.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:
            # As an error, since other ranks than the main one say nothing less.
            message = "rank %d: the profiler's trace %s cannot be written: %s"
            logger.error(message, self._rank, self._path, one_line(error))
            return
        if self._rank == 0:
            logger.info("profiled steps %d to %d: %s", self._steps.first, self._steps.last, self._path.parent)
