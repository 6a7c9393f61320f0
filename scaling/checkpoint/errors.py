"""What goes wrong with checkpoints."""

from __future__ import annotations

from strategies.errors import ScalingError


class CheckpointError(ScalingError):
    """A checkpoint could not be written, or one that is there cannot be gone on from."""


class SaveFailed(CheckpointError):
    """Space is missing or the operating system refuses: earlier checkpoints are untouched, and training can go on."""
