"""What goes wrong while tracing."""

from __future__ import annotations

from strategies.errors import ScalingError


class TraceError(ScalingError):
    """The step cannot be traced without data; names the operation and the module."""


class ExtrapolationError(ScalingError):
    """Logs do not continue each other in a way that is understood; trace the wanted size itself."""
