"""What says so where TensorFlow is not installed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["tensorflow"] = None  # as if it were not installed
from strategies.errors import ScalingError
try:
    import scaling.tensorflow
except ScalingError as error:
    print(error, error.exit_code)
"""


def test_importing_without_tensorflow_says_what_to_install() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == (
        "this needs TensorFlow, which is not installed; pip install 'memory-scaling[tensorflow]' 2"
    )
