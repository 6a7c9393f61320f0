"""The same model and the same updates in TensorFlow: a Keras decoder trained under `tf.distribute.MirroredStrategy`.

An extra: nothing else of the package needs TensorFlow. This is the only place that imports it.
"""

from __future__ import annotations

import importlib.util
import os
import sys

from scaling.errors import EngineError

MISSING = "this needs TensorFlow, which is not installed; pip install 'memory-scaling[tensorflow]'"


def _prepare_import() -> None:
    """Settle what TensorFlow and Keras read from the environment once, when they are imported.

    Raises:
        EngineError: TensorFlow is not installed, or Keras already runs on something else in this process.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise EngineError(MISSING)
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if "keras" in sys.modules and backend != "tensorflow":
        raise EngineError(
            f"KERAS_BACKEND={backend}, and Keras is already imported; start with KERAS_BACKEND=tensorflow"
        )
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else it says at every start what instructions the CPU has


_prepare_import()
