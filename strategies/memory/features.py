"""The sizes that bytes are products of, by the letters that the form files use.

``B`` samples, ``S`` tokens a sample, ``h`` hidden size, ``q`` and ``k`` width of all query and of all key heads, ``n``
and ``c`` their numbers, ``d`` size of a head, ``r`` its rotated part, ``f`` width of the MLP, ``V`` vocabulary, ``P``
positions, ``E`` experts, ``e`` of them a token, ``x`` width of one (of an image: its side in pixels), ``s`` of the
shared one, ``R`` the rank of adapters. Derived: ``X``, ``Y`` and ``Z`` are S rounded up to 8, 32 and 128, ``D`` is d
rounded up as the backward of flash attention does, ``G`` the tokens of one chunk of the fused loss, ``A`` the heads
rounded up to a power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from strategies.memory.logits import fused_chunk_tokens
from strategies.model_spec import ModelSpec, TaskKind
from strategies.units import next_power_of_two, round_up


def sizes_of(spec: ModelSpec, *, micro_batch_size: int, seq_len: int) -> dict[str, int]:
    """Return every size of one forward pass by its letter."""
    return with_derived_sizes(
        {
            "B": micro_batch_size,
            "S": seq_len,
            "h": spec.hidden_size,
            "q": spec.query_size,
            "k": spec.key_value_size,
            "f": spec.intermediate_size,
            "n": spec.num_attention_heads,
            "c": spec.num_key_value_heads,
            "d": spec.head_dim,
            "r": spec.rotary_dim,
            "V": spec.vocab_size,
            "E": spec.num_experts,
            "e": spec.num_experts_per_token,
            "x": spec.moe_intermediate_size or _image_side(spec, seq_len),
            "s": spec.shared_expert_intermediate_size,
            "P": spec.max_seq_len or 0,
            "R": spec.adapter_rank,
        }
    )


def _image_side(spec: ModelSpec, seq_len: int) -> int:
    """Return the pixels of an image's side: one token a patch, and one for the class; 0 for models of text."""
    if spec.task is not TaskKind.IMAGE_CLASSIFICATION:
        return 0
    patches = [tensor.shape[-1] for group in spec.groups for tensor in group.tensors if len(tensor.shape) == 4]
    return isqrt(max(seq_len - 1, 0)) * max(patches)


def with_derived_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return ``sizes`` with those that are rounded or computed from others."""
    seq_len, head_dim = sizes["S"], sizes["d"]
    return {
        **sizes,
        "X": round_up(seq_len, 8),
        "Y": round_up(seq_len, 32),
        "Z": round_up(seq_len, 128),
        "D": round_up(head_dim, 32 if head_dim <= 128 else 64),
        "A": next_power_of_two(sizes["n"]),
        "G": fused_chunk_tokens(sizes["B"] * seq_len, hidden_size=sizes["h"], vocab_size=sizes["V"]),
    }
