"""FLOPs of one token, and the three definitions of model FLOPs utilisation that publications use.

A multiplication and an addition are two FLOPs. Backward is twice forward: one product for the gradient of the input and
one for that of the weight (of both operands in attention). Frozen weights have no gradient, and below the lowest block
that is trained backward does not go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from strategies.model_spec import GroupRole, ModelSpec, ParameterTensor, TaskKind
from strategies.plan import ActivationCheckpointing

BACKWARD_OVER_FORWARD = 2
"""Of attention, and of products where everything is trained."""


class MfuDefinition(StrEnum):
    """What counts as useful work. None counts recomputation, and none halves causal attention."""

    PALM = "palm"
    """6 N + 12 L H Q T, N = all parameters: Chowdhery et al. 2022, arXiv:2204.02311, appendix B; also llm-foundry's."""
    WITHOUT_EMBEDDING = "without-embedding"
    """Likewise, with N = parameters less the input embedding: torchtitan 0.2, ``get_nparams_and_flops``."""
    MEGATRON = "megatron"
    """Three times the matrix products of forward, head included: Korthikanti et al. 2022, arXiv:2205.05198, eq. 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFlops:
    """FLOPs of one token in forward, over all blocks."""

    blocks: float
    """Products with the weights of the blocks; of experts, those that a token passes through."""
    attention: float
    """Scores, and their product with the values."""
    head: float

    @property
    def total(self) -> float:
        return self.blocks + self.attention + self.head


def forward_flops(spec: ModelSpec, *, seq_len: int, causal: bool) -> TokenFlops:
    """Return the FLOPs of one token in forward.

    ``causal`` counts the pairs of tokens that a causal kernel computes, otherwise all pairs. Biases, norms and other
    elementwise work are not counted.
    """
    blocks, head = _matrix_weights(spec)
    is_causal = causal and spec.task is TaskKind.CAUSAL_LM
    full = attended_tokens(seq_len, window=None, causal=is_causal)
    sliding = attended_tokens(seq_len, window=spec.sliding_window, causal=is_causal)
    pairs = (_num_attentions(spec) - spec.num_sliding_layers) * full + spec.num_sliding_layers * sliding
    return TokenFlops(blocks=2 * blocks, attention=4 * spec.query_size * pairs, head=2 * head)


def attended_tokens(seq_len: int, *, window: int | None, causal: bool) -> float:
    """Return how many tokens one token attends to, in the mean over the sequence.

    >>> attended_tokens(4, window=None, causal=True)
    2.5
    >>> attended_tokens(4, window=2, causal=True)
    1.75
    """
    size = min(window or seq_len, seq_len)
    return size - size * (size - 1) / (2 * seq_len) if causal else size


def model_flops(spec: ModelSpec, *, seq_len: int, definition: MfuDefinition = MfuDefinition.PALM) -> float:
    """Return the FLOPs of one token in training that ``definition`` calls useful."""
    forward, reached = forward_flops(spec, seq_len=seq_len, causal=False), reached_share(spec)
    attention = (1 + BACKWARD_OVER_FORWARD * reached) * forward.attention
    if definition is MfuDefinition.MEGATRON:
        return forward.blocks + forward.head + backward_product_flops(spec) + attention
    params, trained = active_params(spec), active_params(spec, trained_only=True)
    if definition is MfuDefinition.WITHOUT_EMBEDDING:
        params -= input_embedding_params(spec)
        trained -= input_embedding_params(spec, trained_only=True)
    return 2 * ((1 + reached) * params + trained) + attention


def reached_share(spec: ModelSpec) -> float:
    """Return the share of blocks that backward runs through."""
    return spec.num_trained_layers / spec.num_layers if spec.num_layers else 1.0


def backward_product_flops(spec: ModelSpec) -> float:
    """Return the FLOPs of one token in the products of backward: gradients of inputs, and of trained weights."""
    blocks, head = _matrix_weights(spec)
    trained_blocks, trained_head = _matrix_weights(spec, trained_only=True)
    reached = reached_share(spec)
    return 2 * (reached * blocks + trained_blocks + (head if reached else 0.0) + trained_head)


def hardware_flops(
    spec: ModelSpec,
    *,
    seq_len: int,
    activation_checkpointing: ActivationCheckpointing,
    definition: MfuDefinition = MfuDefinition.MEGATRON,
) -> float:
    """Return `model_flops` plus what activation checkpointing computes a second time.

    Full: the forward of the blocks. Megatron's selective keeps the results of products and of attention: nothing here.
    """
    useful = model_flops(spec, seq_len=seq_len, definition=definition)
    if activation_checkpointing is not ActivationCheckpointing.FULL:
        return useful
    forward = forward_flops(spec, seq_len=seq_len, causal=False)
    return useful + forward.blocks + forward.attention


def attention_recompute_flops(spec: ModelSpec, *, seq_len: int) -> float:
    """Return the FLOPs of a token under Megatron's selective recomputation, as its paper counts them.

    It adds all of attention once more (s / 6h), gradients included, though only its forward is computed again: what is
    really executed on top is a third of that.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 8.
    """
    useful = model_flops(spec, seq_len=seq_len, definition=MfuDefinition.MEGATRON)
    attention = forward_flops(spec, seq_len=seq_len, causal=False).attention
    return useful + (1 + BACKWARD_OVER_FORWARD) * attention


def utilisation(flops_per_token: float, *, tokens_per_s_per_gpu: float, peak_flops_per_s: float) -> float:
    """Return the share of the peak that ``flops_per_token`` use: MFU, or HFU if recomputation is among them."""
    return flops_per_token * tokens_per_s_per_gpu / peak_flops_per_s


@cache
def active_params(spec: ModelSpec, *, trained_only: bool = False) -> float:
    """Return the parameters one token passes through: all, less the experts that it is not sent to."""
    groups = ((group, group.num_copies) for group in spec.groups)
    return sum(
        copies * tensor.num_params * _share(spec, tensor)
        for group, copies in groups
        for tensor in group.tensors
        if tensor.is_trained or not trained_only
    )


def input_embedding_params(spec: ModelSpec, *, trained_only: bool = False) -> int:
    """Return the parameters of the input embedding, 0 where it is tied to the head and so works as a matrix."""
    if spec.tied_embeddings:
        return 0
    tables = (tensor for group in spec.groups if group.role is GroupRole.EMBEDDING for tensor in group.tensors)
    return sum(tensor.num_params for tensor in tables if tensor.is_trained or not trained_only)


@cache
def _matrix_weights(spec: ModelSpec, *, trained_only: bool = False) -> tuple[float, float]:
    """Return the elements of the matrices that every token is multiplied with: in the blocks, and at the end."""
    blocks, head = 0.0, 0.0
    for group in spec.groups:
        for tensor in group.tensors:
            if trained_only and not tensor.is_trained:
                continue
            if group.role is GroupRole.HEAD:
                head += tensor.num_params if _is_matrix(tensor) else 0
            elif group.role is not GroupRole.EMBEDDING or len(tensor.shape) > 2:
                blocks += group.num_copies * tensor.num_params * _share(spec, tensor) if _is_matrix(tensor) else 0
    if spec.task is TaskKind.IMAGE_CLASSIFICATION:
        head = 0.0  # one product an image
    elif spec.tied_embeddings and (not trained_only or next(spec.tensors()).is_trained):
        head += _tied_matrix(spec)
    return blocks, head


def _is_matrix(tensor: ParameterTensor) -> bool:
    """Tell a matrix, a patch convolution or a stack of experts from biases, norms and tables that are looked up."""
    return len(tensor.shape) > 1 and "relative_attention_bias" not in tensor.name


def _share(spec: ModelSpec, tensor: ParameterTensor) -> float:
    is_expert = spec.num_experts and ".experts." in tensor.name
    return spec.num_experts_per_token / spec.num_experts if is_expert else 1.0


def _tied_matrix(spec: ModelSpec) -> int:
    """Return the elements of the embedding that serves as the head."""
    embeddings = [group for group in spec.groups if group.role is GroupRole.EMBEDDING]
    tables = [tensor.shape for group in embeddings for tensor in group.tensors if spec.vocab_size in tensor.shape]
    return math.prod(tables[0]) if tables else spec.vocab_size * spec.hidden_size


def _num_attentions(spec: ModelSpec) -> int:
    """Return attention layers; the decoder half of an encoder-decoder has two a block."""
    cross = spec.num_layers // 2 if spec.task is TaskKind.SEQ2SEQ_LM else 0
    return spec.num_layers + cross
