"""FSDP2's layout leaves out blocks among alike ones: following all of them gives the same bytes."""

from dataclasses import replace

import pytest

from strategies import fsdp2
from strategies.base import StateLayout
from strategies.fsdp2_passes import Passes
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec

SLOPES = (0, 10**3, 10**6, 10**8, 10**9, 10**10)
"""Bytes of activations that a block frees."""


def highest(layout: StateLayout) -> dict[tuple[int | None, int], int]:
    """Return the highest state beside each gradient, for every slope of the activations."""
    found: dict[tuple[int | None, int], int] = {}
    for state in layout.in_blocks:
        for slope in SLOPES:
            key = (state.new_gradient, slope)
            found[key] = max(found.get(key, 0), state.causes.total_bytes - slope * state.num_done)
    return found


@pytest.mark.parametrize("model", ["llama-3.1-70b", "gpt2-xl", "mixtral-8x7b", "gemma-2-9b"])
@pytest.mark.parametrize("gpus", [1, 48])
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("accumulates", [True, False])
def test_blocks_among_alike_ones_change_nothing(
    model: str, gpus: int, reshard: bool, accumulates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(seq_len=2, global_batch_size=1, precision=Precision.BF16)
    make = fsdp2._layout.__wrapped__
    short = make(load_model_spec(model), job, gpus, reshard, accumulates, False, False, False)
    monkeypatch.setattr(Passes, "_is_among_alike", lambda self, index: False)
    whole = make(load_model_spec(model), job, gpus, reshard, accumulates, False, False, False)
    assert replace(short, in_blocks=()) == replace(whole, in_blocks=())
    assert highest(short) == highest(whole)
