"""Settings of a config.json that change no parameter but what forward keeps: activation, dropout, order of a block."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from strategies.errors import SpecError

KeyDefaults = Mapping[str, Any]

_GPT = {"activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
_ENCODER = {"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1}
_SILU = {"hidden_act": "silu"}
VARIANT_KEYS: Mapping[str, KeyDefaults] = MappingProxyType(
    {
        "bert": _ENCODER,
        "bloom": {"attention_dropout": 0.0, "hidden_dropout": 0.0},
        "cohere": {**_SILU, "use_qk_norm": False},
        "falcon": {
            "activation": "gelu",
            "alibi": False,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "new_decoder_architecture": False,
            "parallel_attn": True,
        },
        "gemma": {"hidden_act": "gelu_pytorch_tanh"},
        "gemma2": {"hidden_activation": "gelu_pytorch_tanh"},
        "gemma3_text": {"hidden_activation": "gelu_pytorch_tanh"},
        "gpt2": _GPT,
        "gpt_neox": {
            "attention_dropout": 0.0,
            "hidden_act": "gelu",
            "hidden_dropout": 0.0,
            "use_parallel_residual": True,
        },
        "gptj": {**_GPT, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
        "granite": _SILU,
        "llama": _SILU,
        "mistral": _SILU,
        "mixtral": _SILU,
        "mpt": {"emb_pdrop": 0.0, "resid_pdrop": 0.0},
        "olmo2": _SILU,
        "opt": {
            "activation_function": "relu",
            "attention_dropout": 0.0,
            "do_layer_norm_before": True,
            "dropout": 0.1,
        },
        "phi": {"embd_pdrop": 0.0, "hidden_act": "gelu_new", "qk_layernorm": False, "resid_pdrop": 0.0},
        "phi3": {"embd_pdrop": 0.0, **_SILU, "resid_pdrop": 0.0},
        "qwen2": _SILU,
        "qwen2_moe": _SILU,
        "qwen3": _SILU,
        "qwen3_moe": _SILU,
        "roberta": _ENCODER,
        "stablelm": {**_SILU, "hidden_dropout": 0.0, "qk_layernorm": False, "use_parallel_residual": False},
        "starcoder2": {
            "attention_dropout": 0.0,
            "embedding_dropout": 0.0,
            "hidden_act": "gelu_pytorch_tanh",
            "residual_dropout": 0.0,
        },
        "t5": {"dropout_rate": 0.1, "feed_forward_proj": "relu"},
        "vit": {"attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0},
    }
)
"""By family the keys, with the value of the Hugging Face class (transformers 5.24) where config.json has none."""

_SAME = {"gelu_pytorch_tanh": "gelu", "gelu_python": "gelu", "swish": "silu", "gelu_pytorch": "gelu"}
"""Activations that one torch function computes, so that they keep the same."""
_ROTARY_SHARE = {"gpt_neox": 0.25, "phi": 0.5, "stablelm": 0.25}
"""Part of a head that is rotated where config.json does not say; all of it in other families."""


def variant_of(config: Mapping[str, Any], *, family: str) -> str:
    """Return the settings as text, those that are off left out: ``gelu_new,attn_pdrop,embd_pdrop,resid_pdrop``.

    Of a dropout only counts whether there is one.
    """
    parts = []
    for key, default in VARIANT_KEYS.get(family, {}).items():
        value = config.get(key, default)
        if isinstance(value, str):
            parts.append(_SAME.get(value, value))
        elif value:
            parts.append(key)
    return ",".join(parts)


def rotary_dim_of(config: Mapping[str, Any], *, family: str, head_dim: int) -> int:
    """Return how many numbers of each head are rotated."""
    if isinstance(config.get("rotary_dim"), int):
        return int(config["rotary_dim"])
    rope = config.get("rope_parameters") or {}
    nested = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    share = config.get("partial_rotary_factor", config.get("rotary_pct", nested))
    if not isinstance(share, int | float) or isinstance(share, bool):
        share = _ROTARY_SHARE.get(family, 1.0)
    if not 0 <= share <= 1:
        raise SpecError(f"partial_rotary_factor={share} must be between 0 and 1; correct the config.json")
    return int(head_dim * share)
