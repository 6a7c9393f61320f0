"""Activations: bytes that one block keeps for backward, and what is in flight around it.

Source of the coefficients: tensors saved by the modelling code of transformers 5.24 with torch 2.13, read off traces on
the meta device with CUDA's attention and dropout kernels and fitted on random shapes; exact in 16 bit for every family
listed, without mask (one document per sequence, or packed without position resets). ``docs/memory.md`` lists what each
term is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strategies.errors import SpecError
from strategies.job import Precision
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing

RNG_STATE_BYTES = 24
"""Seed and offset that CUDA's flash attention keeps per layer (meta kernel, torch 2.13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockForm:
    """Bytes per token of one block = sum of coefficient x size. Split by the element size of what is kept."""

    hidden: int
    """16-bit elements x 2 per hidden unit, and so on: all coefficients are bytes in 16-bit precision."""
    query: int = 0
    key_value: int = 0
    mlp: int
    heads: int = 4
    """The log-sum-exp of attention, fp32, and further fp32 numbers per head."""
    key_value_heads: int = 0
    constant: int = 8
    """One fp32 number a token for each norm, two for a LayerNorm."""
    hidden_fp32: int
    """The coefficient of ``hidden`` when weights and activations are fp32."""
    query_key_norm: int = 0
    """Per query and key unit, on top: norms on the heads."""
    query_key_norm_fp32: int = 0
    layer_norm: bool = False
    """LayerNorm keeps two numbers a token (mean, rstd), in the input's format on a CPU; RMSNorm one in fp32."""
    shifted_norms: int = 0
    """Gemma's norms scale by 1 + weight and keep that sum in fp32: norms of hidden width."""
    shifted_head_norms: int = 0
    dropouts: int = 0
    """Dropout layers on the residual stream: one mask byte per hidden unit each, included in ``hidden``."""
    final: int = 8
    """The last norm, and a dropout on the embeddings, per hidden unit, 16-bit."""
    final_fp32: int = 12
    embedding_dropouts: int = 0
    """Included in ``final``, like ``dropouts``."""
    rotary: float = 1.0
    """Share of each head that is rotated: its sines and cosines are kept once."""


# fp32 columns: the fp32 copies that norms make of 16-bit inputs fall away, the residual stream itself is kept instead.
_LLAMA = BlockForm(hidden=16, query=4, key_value=4, mlp=8, hidden_fp32=24)
_QWEN3 = replace(_LLAMA, heads=8, key_value_heads=4, query_key_norm=6, query_key_norm_fp32=8)
FORMS: dict[str, BlockForm] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _QWEN3,
    # The shared expert's output is kept beside its gate.
    "qwen2_moe": replace(_LLAMA, hidden=18, hidden_fp32=28),
    "qwen3_moe": _QWEN3,
    "granite": _LLAMA,
    "olmo2": replace(_LLAMA, hidden=20, constant=16, query_key_norm=8, query_key_norm_fp32=8, final=10),
    "stablelm": BlockForm(
        hidden=10,
        query=4,
        key_value=4,
        mlp=8,
        constant=16,
        hidden_fp32=20,
        layer_norm=True,
        final=4,
        final_fp32=8,
        rotary=0.25,
    ),
    "gemma": replace(_LLAMA, hidden=20, final=10, shifted_norms=2),
    "gemma3_text": BlockForm(
        hidden=36,
        query=4,
        key_value=4,
        mlp=8,
        heads=8,
        key_value_heads=4,
        constant=16,
        hidden_fp32=40,
        query_key_norm=8,
        query_key_norm_fp32=8,
        shifted_norms=4,
        shifted_head_norms=2,
        final=10,
    ),
    "phi3": BlockForm(hidden=18, query=6, key_value=6, mlp=8, hidden_fp32=28),
    "gpt2": BlockForm(
        hidden=18,
        mlp=10,
        constant=16,
        hidden_fp32=34,
        layer_norm=True,
        dropouts=2,
        final=5,
        final_fp32=9,
        embedding_dropouts=1,
        rotary=0,
    ),
    "gpt_neox": BlockForm(
        hidden=20, mlp=4, constant=16, hidden_fp32=40, layer_norm=True, final=4, final_fp32=8, rotary=0.25
    ),
    "opt": BlockForm(
        hidden=18, mlp=2, constant=16, hidden_fp32=34, layer_norm=True, dropouts=2, final=4, final_fp32=8, rotary=0
    ),
}
TOKEN_BYTES = 20
"""Token ids and moved labels (int64), one fp32 number of the last norm; within 24 bytes a token for every family."""


def block_activations(spec: ModelSpec, *, num_tokens: int, precision: Precision, on_cpu: bool = False) -> int:
    """Return the bytes one block keeps for backward without activation checkpointing.

    Fused attention; nothing quadratic in the sequence length. Holds for the families in ``FORMS``; not for masks
    (padding, sliding windows shorter than the sequence), which CUDA's kernels expand per layer.
    ``on_cpu`` counts torch's CPU kernels instead: dropout noise in full width, LayerNorm statistics in the input's
    format. Dropout on the attention weights makes a CPU fall back to quadratic attention; that is not counted.

    Raises:
        SpecError: no closed form for this family.
    """
    form = require_closed_form(spec)
    fp32, wide = precision is Precision.FP32, precision.weight_bytes // 2
    hidden = form.hidden_fp32 if fp32 else form.hidden
    hidden += form.dropouts * _cpu_noise_bytes(precision) if on_cpu else 0
    head_norm = form.query_key_norm_fp32 if fp32 else form.query_key_norm
    narrow_statistics = form.layer_norm and on_cpu and not fp32
    per_token = (
        hidden * spec.hidden_size
        + (wide * form.query + head_norm) * spec.query_size
        + (wide * form.key_value + head_norm) * spec.key_value_size
        + wide * form.mlp * _active_mlp_size(spec)
        + form.heads * spec.num_attention_heads
        + form.key_value_heads * spec.num_key_value_heads
        + (form.constant // 2 if narrow_statistics else form.constant)
    )
    per_block = 4 * (form.shifted_norms * spec.hidden_size + form.shifted_head_norms * spec.head_dim)
    return num_tokens * per_token + per_block + (0 if on_cpu else RNG_STATE_BYTES)


def kept_activations(
    spec: ModelSpec,
    *,
    num_tokens: int,
    precision: Precision,
    activation_checkpointing: ActivationCheckpointing,
    on_cpu: bool = False,
) -> int:
    """Return the bytes of all blocks at the end of forward; with full activation checkpointing, each block's input."""
    if activation_checkpointing is ActivationCheckpointing.FULL:
        return spec.num_layers * num_tokens * spec.hidden_size * precision.weight_bytes
    block = block_activations(spec, num_tokens=num_tokens, precision=precision, on_cpu=on_cpu)
    return spec.num_layers * block


def outer_activations(
    spec: ModelSpec, *, num_tokens: int, seq_len: int, precision: Precision, on_cpu: bool = False
) -> int:
    """Return the bytes kept outside the blocks, logits left out: last norm, position tables, ids and labels."""
    form = require_closed_form(spec)
    hidden = form.final_fp32 if precision is Precision.FP32 else form.final
    hidden += form.embedding_dropouts * _cpu_noise_bytes(precision) if on_cpu else 0
    rotary = 2 * precision.weight_bytes * seq_len * spec.head_dim * form.rotary
    return num_tokens * (hidden * spec.hidden_size + TOKEN_BYTES) + round(rotary)


def recomputed_block(spec: ModelSpec, *, num_tokens: int, precision: Precision, on_cpu: bool = False) -> int:
    """Return the bytes of the block that backward has just recomputed, plus what its own backward has in flight.

    In flight: the gradients of the two widest MLP tensors. A fit to traces of this form is within 5 % of the block.
    """
    block = block_activations(spec, num_tokens=num_tokens, precision=precision, on_cpu=on_cpu)
    return block + backward_in_flight(spec, num_tokens=num_tokens, precision=precision)


def backward_in_flight(spec: ModelSpec, *, num_tokens: int, precision: Precision) -> int:
    """Return the bytes of the gradients of activations that live at one moment inside a block's backward."""
    return 2 * num_tokens * precision.weight_bytes * _active_mlp_size(spec)


def _cpu_noise_bytes(precision: Precision) -> int:
    """Return what a dropout keeps per element on a CPU beyond CUDA's one-byte mask: noise in the input's format."""
    return precision.weight_bytes - 1


def require_closed_form(spec: ModelSpec) -> BlockForm:
    """Return the form of the spec's family.

    Raises:
        SpecError: there is none.
    """
    if spec.family not in FORMS:
        raise SpecError(
            f"model {spec.name}: no closed form for the activations of model_type={spec.family!r} yet, so its peak "
            f"cannot be predicted (there is one for {', '.join(sorted(FORMS))}); "
            f"its {spec.num_params:,} parameters are known"
        )
    return FORMS[spec.family]


def _active_mlp_size(spec: ModelSpec) -> int:
    """Return the MLP width one token passes through; for experts, the sum over those chosen, gathers included."""
    if not spec.num_experts_per_token:
        return spec.intermediate_size
    # Gathered inputs and outputs cost 4 bytes per hidden unit and chosen expert: half a unit of MLP width each.
    width = spec.num_experts_per_token * (spec.moe_intermediate_size + spec.hidden_size // 2)
    return width + spec.shared_expert_intermediate_size
