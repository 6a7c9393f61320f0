"""Logs of models, batches and lengths that were not traced, from those that were."""

from scaling.trace.extrapolate.depth import extrapolate_depth
from scaling.trace.extrapolate.size import extrapolate_size

__all__ = ["extrapolate_depth", "extrapolate_size"]
