"""Whether TensorFlow is there, asked without importing it."""

from __future__ import annotations

import importlib.util

from scaling.errors import EngineError

MISSING = "this needs TensorFlow, which is not installed; pip install 'memory-scaling[tensorflow]'"


def require_tensorflow() -> None:
    """Refuse to go on without TensorFlow.

    Raises:
        EngineError: it is not installed; says how to get it.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise EngineError(MISSING)
