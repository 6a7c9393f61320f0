"""Gradient statistics by layer against plain torch in one process."""

from __future__ import annotations

import math

import pytest
import torch

from scaling.local_ranks import run_ranks
from scaling.watching.layer_stats import layers_by_parameter
from scaling.watching.run_watch import clipped_norm
from tests.scaling.watching.layer_program import (
    MAX_NORM,
    VARIANTS,
    Seen,
    batches,
    gradients_by_layer,
    look_at_every_engine,
    small_model,
)

NUM_RANKS = 2
TOLERANCE = {"ddp-fp16": 5e-3, "zero2-fp16": 5e-3}
"""fp16 has 11 bits; everything else is fp32."""


@pytest.fixture(scope="module")
def seen() -> tuple[dict[str, Seen], ...]:
    return run_ranks(look_at_every_engine, world_size=NUM_RANKS, timeout_s=300)


@pytest.mark.distributed
@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_layers_have_the_gradients_of_plain_torch(seen: tuple[dict[str, Seen], ...], variant: str) -> None:
    tolerance = TOLERANCE.get(variant, 1e-5)
    expected = gradients_by_layer(NUM_RANKS)
    for rank in seen:
        assert rank[variant] == seen[0][variant]
    layers = seen[0][variant].record.layers
    assert {name: each.grad_norm for name, each in layers.items()} == pytest.approx(
        {name: norm for name, (norm, _) in expected.items()}, rel=tolerance
    )
    assert {name: each.grad_max for name, each in layers.items()} == pytest.approx(
        {name: largest for name, (_, largest) in expected.items()}, rel=tolerance
    )


@pytest.mark.distributed
@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_layers_add_up_to_the_norm_of_the_step(seen: tuple[dict[str, Seen], ...], variant: str) -> None:
    of_step = seen[0][variant]
    together = math.sqrt(sum(layer.grad_norm**2 for layer in of_step.record.layers.values()))
    assert together == pytest.approx(of_step.grad_norm, rel=TOLERANCE.get(variant, 1e-5))
    assert of_step.record.step == 2
    assert of_step.before is None  # every second step


def test_a_layer_is_a_repeated_block_or_the_module_above() -> None:
    layers = layers_by_parameter(small_model())
    assert layers["model.layers.2.self_attn.q_proj.weight"] == "model.layers.2"
    assert layers["lm_head.weight"] == "lm_head"
    assert set(layers.values()) == set(gradients_by_layer(1))


def test_frozen_parameters_have_no_layer() -> None:
    model = small_model()
    model.model.embed_tokens.weight.requires_grad_(False)
    assert "model.embed_tokens" not in layers_by_parameter(model).values()


@pytest.mark.parametrize("max_norm", [MAX_NORM, 1e3])
def test_the_norm_after_clipping_matches_torch(max_norm: float) -> None:
    model = small_model()
    ids = batches(0)[0].inputs["input_ids"]
    model(input_ids=ids, labels=ids).loss.backward()
    before = float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm))
    after = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    assert clipped_norm(before, max_norm=max_norm) == pytest.approx(after, rel=1e-5)


def test_there_is_no_norm_after_clipping_where_there_is_no_update() -> None:
    assert clipped_norm(math.inf, max_norm=1.0) is None
    assert clipped_norm(2.0, max_norm=0.0) == 2.0
