"""A rank that stops does not keep the others waiting for longer than the timeout says."""

from __future__ import annotations

import re

import pytest

from tests.scaling.launching import TORCHRUN, start


@pytest.mark.distributed
@pytest.mark.deepspeed
@pytest.mark.slow
def test_the_timeout_holds_in_the_groups_that_deepspeed_makes() -> None:
    # torch's default for them is half an hour.
    done = start([*TORCHRUN, "2", "-m", "tests.scaling.engines.hang_worker", "zero2", "4"], timeout_s=100)
    waited = re.search(r"gave up after ([\d.]+) s", done.stdout)
    assert waited, done.stderr[-3000:]
    assert 3.0 < float(waited[1]) < 15.0
