"""The same model and the same updates in TensorFlow: a Keras decoder trained under `tf.distribute.MirroredStrategy`.

An extra: nothing else of the package needs TensorFlow. This is the only place that imports it.
"""

from __future__ import annotations

import importlib
import os
import sys

from scaling.engines.quiet import without_line
from scaling.errors import EngineError
from scaling.tensorflow_extra import require_tensorflow

START_LINES = (
    "All log messages before absl::InitializeLog() is called",
    "oneDNN custom operations are on",
    "Could not find cuda drivers",
)
"""What TensorFlow 2.21 writes whenever it is imported, whatever TF_CPP_MIN_LOG_LEVEL is."""


def _import() -> None:
    """Import TensorFlow and Keras, with what they read from the environment settled.

    Raises:
        EngineError: TensorFlow is not installed, or Keras already runs on something else in this process.
    """
    require_tensorflow()
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if "keras" in sys.modules and backend != "tensorflow":
        raise EngineError(
            f"KERAS_BACKEND={backend}, and Keras is already imported; start with KERAS_BACKEND=tensorflow"
        )
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else it says at every start what instructions the CPU has
    with without_line(*START_LINES):
        importlib.import_module("keras")


try:
    _import()
except EngineError as error:
    if sys.argv[0] != "-m":  # which stands there while Python looks for the module that `python -m` is to run
        raise
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code) from None
