"""Saving is a call of all ranks: what one cannot do all are told, and one rank alone does not wait for ever."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.scaling.launching import TORCHRUN, succeed

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def test_saving_on_rank_0_alone_is_an_error_within_its_time(tmp_path: Path) -> None:
    # accelerate #2912, pytorch #143536: the ranks that save wait in a collective for those that do not.
    said = succeed([*TORCHRUN, "2", "-m", "tests.scaling.checkpoint.one_rank_saves", tmp_path], timeout_s=120)
    assert sorted(re.findall(r"rank (\d): a state that cannot be cut", said)) == ["0", "1"]  # it is the second's alone
    match = re.search(r"after ([\d.]+) s: not every rank came to save a checkpoint within 2 s: (.*)", said)
    assert match, said
    assert float(match[1]) < 20
    assert "call it on every rank, not on rank 0 alone" in match[2]
    assert os.listdir(tmp_path) == ["step-00000001"]
