"""What goes wrong with checkpoints."""

from __future__ import annotations

from strategies.errors import ScalingError


class CheckpointError(ScalingError):
    """A checkpoint could not be written, or one that is there cannot be gone on from."""
