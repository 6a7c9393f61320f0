"""What goes wrong with data."""

from __future__ import annotations

from strategies.errors import ScalingError


class DataError(ScalingError):
    """The data or the tokenizer cannot be read, or there is too little data for the job."""
