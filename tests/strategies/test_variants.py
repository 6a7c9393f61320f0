"""Settings that change what forward keeps: their defaults are the library's own."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from strategies.architectures import ARCHITECTURES
from strategies.architectures.variants import VARIANT_KEYS, rotary_dim_of, variant_of
from strategies.load_model import load_model_spec


@pytest.mark.parametrize("family", sorted(VARIANT_KEYS))
def test_defaults_match_the_library(family: str) -> None:
    library = AutoConfig.for_model(family).to_dict()
    assert {key: library[key] for key in VARIANT_KEYS[family]} == dict(VARIANT_KEYS[family])


def test_every_family_with_blocks_of_text_has_settings() -> None:
    # Images of the first are refused; the second has two towers, and no closed forms.
    assert set(ARCHITECTURES) - set(VARIANT_KEYS) == {"gemma3", "clip"}


@pytest.mark.parametrize(
    ("preset", "variant", "rotated"),
    [
        ("llama-3.1-8b", "silu", 128),
        ("gpt2-xl", "gelu_new,attn_pdrop,embd_pdrop,resid_pdrop", 64),
        ("phi-2", "gelu_new,resid_pdrop", 32),
        ("gpt-j-6b", "gelu_new", 64),
        ("gemma-7b", "gelu", 256),
        ("pythia-1b", "gelu,use_parallel_residual", 64),
    ],
)
def test_presets_name_their_variant(preset: str, variant: str, rotated: int) -> None:
    spec = load_model_spec(preset)
    assert (spec.variant, spec.rotary_dim) == (variant, rotated)


def test_dropout_counts_by_being_there() -> None:
    assert variant_of({"dropout": 0.3}, family="opt") == variant_of({"dropout": 0.1}, family="opt")
    assert variant_of({"dropout": 0.0}, family="opt") == "relu,do_layer_norm_before"


@pytest.mark.parametrize(
    ("config", "family", "expected"),
    [
        ({}, "llama", 96),
        ({}, "phi", 48),
        ({"partial_rotary_factor": 0.25}, "phi", 24),
        ({"rope_parameters": {"partial_rotary_factor": 0.75}}, "phi3", 72),
        ({"rotary_pct": 0.5}, "gpt_neox", 48),
    ],
)
def test_rotated_part_of_a_head(config: dict[str, object], family: str, expected: int) -> None:
    assert rotary_dim_of(config, family=family, head_dim=96) == expected
