"""Bytes that elementwise kernels read and write per token: norms, residuals, rotation, activation function, loss.

Counted kernel by kernel over the modelling code of transformers 5.24, in 16 bit. A compiler fuses most of them: then
every tensor is read and written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.job import Attention, Job, LossImplementation
from strategies.model_spec import ModelSpec

NARROW, WIDE = 2, 4
"""Bytes of an element in 16 bit and in fp32."""
LAYER_NORM = 2 * NARROW
"""One kernel: read, write. RMSNorm likewise when compiled."""
RMS_NORM = 3 * NARROW + 7 * WIDE
"""Widen, square and reduce, scale, narrow, weight: five kernels."""
RESIDUAL = 3 * NARROW
DROPOUT = 2 * NARROW + 1
ROTATION = 10 * NARROW
"""Product with cosines, rotate (negate, join), product with sines, sum."""
FUSED_ROTATION = 2 * NARROW
LAYOUT = 2 * NARROW
"""Queries, keys, values and what attention returns are copied between the layouts of products and of its kernel."""
ACTIVATION = 2 * NARROW
GATE = 3 * NARROW
SCORE = 5 * NARROW + 2 * WIDE
"""Eager attention, per pair of tokens and head: scale, mask, softmax in fp32, narrow, dropout."""
LOGIT = 36
"""Forward and backward: widen (6), log-softmax (8) and its backward (16), gradient narrowed (6)."""
FUSED_LOGIT = 3 * NARROW
"""One kernel reads the logits and writes their gradient in place."""
WITH_DROPOUT = frozenset({"gpt2", "opt"})
WITHOUT_ROTATION = frozenset({"gpt2", "opt", "mpt", "bloom", "bert", "roberta", "t5", "vit"})
WITH_RMS_NORM = frozenset({"gemma", "gemma2", "gemma3_text", "olmo2", "t5", "phi3", "granite"})
"""Beside the families that start with these letters."""
RMS_NORM_PREFIXES = ("llama", "mistral", "mixtral", "qwen")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes of one token."""

    blocks: float
    """All blocks, forward; backward moves twice as many: a gradient for each operand, and what was kept."""
    loss: float
    """Forward and backward together."""


def token_bytes(spec: ModelSpec, job: Job, *, compiled: bool) -> TokenBytes:
    """Return the bytes that elementwise kernels move for one token."""
    width = job.precision.compute_bytes / NARROW
    blocks = spec.num_layers * (_fused_block(spec) if compiled else _eager_block(spec))
    if job.attention is Attention.EAGER:
        blocks += spec.num_layers * spec.num_attention_heads * job.seq_len * SCORE
    logit = FUSED_LOGIT if job.loss is LossImplementation.FUSED or compiled else LOGIT
    return TokenBytes(blocks=width * blocks, loss=width * logit * spec.vocab_size)


def _eager_block(spec: ModelSpec) -> float:
    is_rms = spec.family in WITH_RMS_NORM or spec.family.startswith(RMS_NORM_PREFIXES)
    dropouts = 2 * DROPOUT if spec.family in WITH_DROPOUT else 0
    per_hidden = 2 * (RMS_NORM if is_rms else LAYER_NORM) + 2 * RESIDUAL + dropouts
    activation = ACTIVATION + GATE if spec.gated_mlp else ACTIVATION
    laid_out = 2 * (spec.query_size + spec.key_value_size)
    attention = ROTATION * _rotated(spec) + LAYOUT * laid_out
    return per_hidden * spec.hidden_size + attention + activation * _mlp_size(spec)


def _fused_block(spec: ModelSpec) -> float:
    per_hidden = 2 * LAYER_NORM + 2 * RESIDUAL
    activation = GATE if spec.gated_mlp else ACTIVATION
    return per_hidden * spec.hidden_size + FUSED_ROTATION * _rotated(spec) + activation * _mlp_size(spec)


def _rotated(spec: ModelSpec) -> int:
    """Return how many numbers of queries and keys are rotated."""
    heads = spec.num_attention_heads + spec.num_key_value_heads
    return 0 if spec.family in WITHOUT_ROTATION else spec.rotary_dim * heads


def _mlp_size(spec: ModelSpec) -> float:
    """Return the MLP width that one token passes through, in the mean over the blocks."""
    if not spec.num_experts_per_token:
        return spec.intermediate_size
    # For each chosen expert the input is gathered, and the output scattered and summed.
    experts = spec.num_experts_per_token * (spec.moe_intermediate_size + spec.hidden_size)
    share = spec.num_moe_layers / spec.num_layers
    return share * (experts + spec.shared_expert_intermediate_size) + (1 - share) * spec.intermediate_size
