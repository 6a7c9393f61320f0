"""Narrow models of every family at random shapes, for fitting what they keep: all sizes independent where they can be.

Sizes are those of `strategies.memory.features`, so that what is fitted here is evaluated there for any model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strategies.model_spec import TaskKind

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TASKS = {
    "bert": TaskKind.MASKED_LM,
    "roberta": TaskKind.MASKED_LM,
    "t5": TaskKind.SEQ2SEQ_LM,
    "vit": TaskKind.IMAGE_CLASSIFICATION,
}
_LIKE_LLAMA = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "granite", "olmo2", "stablelm"),
    *("gemma", "gemma2", "gemma3_text", "phi3", "phi", "starcoder2", "cohere"),
)
_EXPLICIT_HEAD_DIM = (
    "llama",
    "mistral",
    "mixtral",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "t5",
)
_WITHOUT_GROUPS = ("gpt2", "gptj", "gpt_neox", "opt", "bloom", "mpt", "bert", "roberta", "t5", "vit")
_FOUR_TIMES = ("bloom", "mpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One random shape: what the features are products of, and the keys that make the model."""

    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    """Of the configuration, without the depth."""
    batch: int
    seq: int


def random_shape(
    family: str, settings: Mapping[str, Any], *, seed: int, batch: int | None = None, is_realistic: bool = False
) -> Shape:
    """Return a shape of ``family``; ``settings`` are the keys of config.json that choose the variant.

    `settings` may hold a ``grouping``: ``grouped`` query heads that share keys, ``single`` where one key head serves
    all, ``equal`` for as many key as query heads. `is_realistic`: the MLP is as much wider than the rest as in
    published models, instead of independent of it.
    """
    pick = random.Random(f"{family} {seed}")
    batch = pick.choice((2, 3, 5)) if batch is None else batch
    heads, seq = ((6, 14), (10, 22), (18, 26))[seed % 3][pick.randrange(2)], 8 * pick.choice((5, 7, 9, 11, 13, 17))
    groups = _groups(family, settings, heads=heads, is_even=seed % 2 == 0)
    head_dim = 8 * (5, 3, 7)[seed % 3]
    hidden = heads * (8 * (4, 6, 2)[seed % 3] if family in _EXPLICIT_HEAD_DIM else head_dim)
    if is_realistic:
        seq = 8 * seq
    mlp = (
        8 * round(hidden * pick.choice((2.7, 3.5, 4, 5)) / 8)
        if is_realistic
        else 8 * ((53, 61), (67, 71), (83, 97))[seed % 3][pick.randrange(2)]
    )
    mlp = 4 * hidden if family in _FOUR_TIMES else mlp
    sizes = {
        **{"h": hidden, "q": heads * head_dim, "k": groups * head_dim, "f": mlp, "n": heads, "c": groups},
        **{"d": head_dim, "V": (1013, 1597, 1329)[seed % 3] + 6 * pick.randrange(20), "r": head_dim},
        **{"E": 0, "e": 0, "x": 0, "s": 0, "P": 4096},
    }
    values = _values(family, sizes, settings, pick)
    given = {name: value for name, value in settings.items() if name != "grouping"}
    return Shape(sizes=sizes, values={**values, **given}, batch=batch, seq=_length(family, values, seq))


def _groups(family: str, settings: Mapping[str, Any], *, heads: int, is_even: bool) -> int:
    """Return the number of key heads, in no fixed ratio to that of query heads."""
    grouping = settings.get("grouping", "grouped")
    if family in _WITHOUT_GROUPS or grouping == "equal":
        return heads
    if grouping == "single":
        return 1
    if family == "falcon" and not settings.get("new_decoder_architecture"):
        return 1 if settings.get("multi_query", True) else heads
    return 2 if is_even else heads // 2


def can_group(family: str) -> bool:
    """Whether models of ``family`` choose freely between as many and fewer key than query heads."""
    return family in _LIKE_LLAMA


STACK_KEYS = {"t5": {"encoder": "num_layers", "decoder": "num_decoder_layers"}}
"""Families of two stacks: the key that sets the depth of each."""


def depth_keys(family: str, num_layers: int, *, deeper: str | None = None) -> dict[str, int]:
    """Return the keys of the configuration that set the depth; the stack called ``deeper`` has one block more."""
    if family in STACK_KEYS:
        return {key: num_layers + (stack == deeper) for stack, key in STACK_KEYS[family].items()}
    names = {
        **dict.fromkeys(("gpt2", "gptj", "bloom"), ("n_layer",)),
        "mpt": ("n_layers",),
    }.get(family, ("num_hidden_layers",))
    return dict.fromkeys(names, num_layers)


def _length(family: str, values: Mapping[str, Any], seq: int) -> int:
    return (values["image_size"] // values["patch_size"]) ** 2 + 1 if family == "vit" else seq


def _values(family: str, sizes: dict[str, int], settings: Mapping[str, Any], pick: random.Random) -> dict[str, Any]:
    common: dict[str, Any] = {"vocab_size": sizes["V"], **IDS}
    if family in _LIKE_LLAMA:
        return common | _like_llama(family, sizes, pick)
    if family in ("gpt2", "gptj"):
        names = {"n_embd": sizes["h"], "n_head": sizes["n"], "n_inner": sizes["f"], "n_positions": 4096}
        if family == "gptj":
            sizes["r"] = names["rotary_dim"] = 8 * pick.choice((1, 2))
        return common | names
    names = {"hidden_size": sizes["h"], "num_attention_heads": sizes["n"], "intermediate_size": sizes["f"]}
    match family:
        case "gpt_neox":
            sizes["r"] = sizes["d"] // 4
            return common | names | {"rotary_pct": 0.25, "max_position_embeddings": 4096}
        case "opt":
            names |= {"ffn_dim": names.pop("intermediate_size"), "word_embed_proj_dim": sizes["h"]}
            return common | names | {"max_position_embeddings": 4094}  # the table has two rows more
        case "bloom":
            return common | {"hidden_size": sizes["h"], "n_head": sizes["n"]}
        case "mpt":
            return common | {"d_model": sizes["h"], "n_heads": sizes["n"], "max_seq_len": 4096}
        case "falcon":
            names |= {"ffn_hidden_size": names.pop("intermediate_size"), "num_kv_heads": sizes["c"]}
            return common | names | {"max_position_embeddings": 4096}
        case "bert" | "roberta":
            return common | names | {"max_position_embeddings": 4096, "type_vocab_size": 2}
        case "t5":
            names = {"d_model": sizes["h"], "d_ff": sizes["f"], "d_kv": sizes["d"], "num_heads": sizes["n"]}
            return common | names | {"decoder_start_token_id": 0}
        case "vit":
            sizes["x"] = side = 16 * (5, 7, 9)[sizes["V"] % 3]
            sizes["V"] = 0
            return names | {"image_size": side, "patch_size": 16, "num_labels": 11}
    raise ValueError(family)


def _like_llama(family: str, sizes: dict[str, int], pick: random.Random) -> dict[str, Any]:
    values: dict[str, Any] = {
        "hidden_size": sizes["h"],
        "intermediate_size": sizes["f"],
        "num_attention_heads": sizes["n"],
        "num_key_value_heads": sizes["c"],
        "max_position_embeddings": 4096,
    }
    if family in _EXPLICIT_HEAD_DIM:
        values["head_dim"] = sizes["d"]
    if family in ("phi", "stablelm"):
        sizes["r"] = sizes["d"] // 4
        values["partial_rotary_factor"] = 0.25
    if family in ("mixtral", "qwen2_moe", "qwen3_moe"):
        number = sizes["V"] % 3  # differs from shape to shape
        sizes |= {"E": (7, 9, 11)[number], "e": (2, 3, 4)[number]}
        values["num_experts_per_tok"] = sizes["e"]
        values["num_local_experts" if family == "mixtral" else "num_experts"] = sizes["E"]
        sizes["x"] = sizes["f"]
        if family != "mixtral":
            sizes["x"] = values["moe_intermediate_size"] = 8 * ((17, 31), (19, 37), (23, 29))[number][pick.randrange(2)]
        if family == "qwen2_moe":
            sizes["s"] = values["shared_expert_intermediate_size"] = 8 * (37, 41, 43)[number]
    if family.startswith("mi") or family in ("phi3", "starcoder2"):
        values["sliding_window"] = None
    if family in ("gemma2", "gemma3_text"):
        values["sliding_window"] = 100_000
    return values
