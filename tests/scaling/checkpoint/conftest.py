"""What tests of checkpoints in one process start from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scaling.checkpoint.alone import one_rank


@pytest.fixture
def _one_rank() -> Iterator[None]:
    with one_rank():
        yield
