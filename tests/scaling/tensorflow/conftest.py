"""Tests that import TensorFlow: collected where it is installed, and run in a process of their own by `make test`."""

from __future__ import annotations

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("tensorflow") else ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def two_logical_cpus() -> None:
    """TensorFlow settles its devices at its first operation: two of them, whatever test comes first."""
    from scaling.tensorflow.devices import mirrored_strategy

    mirrored_strategy(2)
