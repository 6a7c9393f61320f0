"""Which settings of every family get forms: those of the presets, the library's defaults, and dropout switched off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.form_families import can_group
from strategies.architectures.variants import VARIANT_KEYS

Settings = Mapping[str, Any]
_GPT_OFF = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
_ENCODER_OFF = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
_MORE: Mapping[str, tuple[Settings, ...]] = {
    "gpt2": (_GPT_OFF,),
    "gpt_neox": ({"hidden_act": "gelu_fast"}, {"use_parallel_residual": False}),
    "opt": ({"dropout": 0.0}, {"do_layer_norm_before": False}),
    "falcon": ({"new_decoder_architecture": True},),
    "bert": (_ENCODER_OFF,),
    "t5": ({"feed_forward_proj": "gated-gelu"}, {"dropout_rate": 0.0}),
    "phi": ({"resid_pdrop": 0.1},),
    "starcoder2": ({"attention_dropout": 0.1, "embedding_dropout": 0.1, "residual_dropout": 0.1},),
}
WITH_WINDOWS = ("mistral", "mixtral", "phi3", "starcoder2", "gemma2", "gemma3_text")
"""Families whose published models have a window shorter than the sequences they are trained on."""
WINDOW = 16
FAMILIES = tuple(VARIANT_KEYS)


_GROUPINGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "phi3", "cohere"), ("grouped", "equal")),
    **dict.fromkeys(("olmo2", "phi", "qwen2_moe", "stablelm"), ("equal",)),
    "gemma": ("grouped", "equal", "single"),
    "gemma3_text": ("grouped", "single"),
}
"""Numbers of key heads, as in the family's published models: fewer than query heads, as many, or one."""


def variants(family: str) -> Iterator[dict[str, Any]]:
    """Yield keys of config.json, with ``grouping`` where the family leaves the number of key heads free."""
    for settings in ({}, *_MORE.get(family, ())):
        for grouping in _GROUPINGS.get(family, ("grouped",)) if can_group(family) else (None,):
            yield dict(settings) if grouping is None else {**settings, "grouping": grouping}


def windowed(family: str, settings: Settings, *, num_layers: int) -> dict[str, Any]:
    """Return ``settings`` with a short sliding window in every layer."""
    listed = {"layer_types": ["sliding_attention"] * num_layers} if family.startswith("gemma") else {}
    return {**settings, "sliding_window": WINDOW, **listed}
