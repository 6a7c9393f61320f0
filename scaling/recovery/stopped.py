"""`Stopped`: the outcome of a run that was asked to end before its last step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What is left of the run: everything that it needs to go on."""

    step: int
    """Optimizer steps done."""
    num_steps: int
    checkpoint: str
    reason: str | None
    """What asked this rank to stop; None where only others were asked."""

    def lines(self) -> list[str]:
        """Return the outcome as lines to print."""
        asked = f"by {self.reason} " if self.reason else ""
        return [
            f"stopped {asked}after step {self.step} of {self.num_steps}; saved in {self.checkpoint}",
            "the same command with --resume auto goes on from there",
        ]
