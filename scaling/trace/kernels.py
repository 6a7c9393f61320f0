"""What CUDA or a CPU runs for the torch functions whose kernels differ between devices in the memory they keep.

Meta tensors take the slow path of these functions: attention falls back to plain matrix products, dropout keeps its
noise in the input's format. Here they are spelled with the operators of the emulated device, which have meta kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scaling.storage_log import ScratchRule
from strategies.units import round_up

aten: Any = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_MAX_FLASH_HEAD_DIM = 256
_MASK_ALIGNMENT = 8
"""Elements to which rows of a mask are padded. Source: torch 2.x, transformers/attention.cpp, preprocess_mask."""


def cuda_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as ``scaled_dot_product_attention`` chooses it on CUDA (compute capability 8.0 and up).

    Flash where there is no mask and the inputs are 16-bit, else the memory-efficient kernel, else plain products.
    Source: torch 2.x, ATen/native/transformers/cuda/sdp_utils.cpp, use_flash_attention and use_mem_efficient_attention.
    """
    head_dim = query.shape[-1]
    same_heads = query.shape[1] == key.shape[1] if query.dim() == 4 else True
    flash_shapes = query.dim() == 4 and head_dim == value.shape[-1] <= _MAX_FLASH_HEAD_DIM
    flash_order = not is_causal or query.shape[-2] == key.shape[-2]
    if query.dtype in _HALF and attn_mask is None and flash_shapes and flash_order and (same_heads or enable_gqa):
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if query.dim() == 4 and same_heads and head_dim % (8 if query.dtype in _HALF else 4) == 0:
        return _memory_efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def cpu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as ``scaled_dot_product_attention`` chooses it on a CPU.

    Source: torch 2.x, ATen/native/transformers/sdp_utils_cpp.cpp, use_flash_attention_cpp; held to real runs by tests.
    """
    same_heads = query.dim() == 4 and query.shape[1] == key.shape[1]
    trained_mask = attn_mask is not None and attn_mask.requires_grad
    if query.dim() == 4 and (same_heads or enable_gqa) and not dropout_p and not trained_mask:
        mask = None if attn_mask is None else _additive(attn_mask, query.dtype)
        return _first(
            aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
            )
        )
    return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: float | None) -> Tensor:
    head_dim = query.shape[-1]
    padding = -head_dim % 8
    if padding:
        query, key, value = (F.pad(tensor, (0, padding)) for tensor in (query, key, value))
    scale = head_dim**-0.5 if scale is None else scale
    out = _first(aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale))
    return out[..., :head_dim] if padding else out


def _memory_efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    bias = None if mask is None else _expanded_bias(_additive(mask, query.dtype), query, key)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    return _first(
        aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
        )
    )


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    return _first(
        aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )
    )


def _first(results: tuple[Tensor, ...]) -> Tensor:
    """Return the output of an attention operator, without what it keeps for backward."""
    return results[0]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to the scores for ``mask``: a boolean one becomes a new tensor in the inputs' format."""
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device))


def _expanded_bias(bias: Tensor, query: Tensor, key: Tensor) -> Tensor:
    strides = bias.stride()
    if any(stride % _MASK_ALIGNMENT for stride in strides[:-1]) or strides[-1] != 1:
        length = bias.shape[-1]
        bias = F.pad(bias, (0, _MASK_ALIGNMENT - length % _MASK_ALIGNMENT))[..., :length]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def cuda_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Dropout that keeps a mask of one byte an element, where others keep the noise in the input's format."""
    if not train or not 0 < p < 1 or input.numel() == 0:
        return torch.dropout(input, p, train)
    return torch.native_dropout(input, p, True)[0]


class _FusedRmsNorm(torch.autograd.Function):
    """Memory of CUDA's fused kernel: besides input and weight it keeps one fp32 number a row."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, num_rows: int) -> Tensor:
        ctx.save_for_backward(input, weight, input.new_empty(num_rows, dtype=torch.float32))
        return torch.empty_like(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        input, weight, _ = ctx.saved_tensors
        return torch.empty_like(input), torch.empty_like(weight), None


def cuda_rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``rms_norm`` as CUDA runs it: fused where weight and input have one format.

    Source: torch 2.13, ATen/native/layer_norm.cpp, rms_norm_symint and its CUDA kernel.
    """
    if weight is None or weight.dtype != input.dtype:
        return torch.rms_norm(input, normalized_shape, weight, eps)
    num_rows = input.numel() // math.prod(normalized_shape)
    out: Tensor = _FusedRmsNorm.apply(input, weight, num_rows)  # type: ignore[no-untyped-call]
    return out


Replacements = Mapping[Any, Callable[..., Any]]
"""By torch function, what the emulated device does in its place."""

_ATTENTION = torch._C._nn.scaled_dot_product_attention
CPU_KERNELS: Replacements = {_ATTENTION: cpu_attention}
CUDA_KERNELS: Replacements = {
    _ATTENTION: cuda_attention,
    torch.dropout: cuda_dropout,
    torch.rms_norm: cuda_rms_norm,
}


def _flash_backward_scratch(args: tuple[Any, ...]) -> list[int]:
    """fp32 query gradient and row sums; key and value gradients for all query heads where these share keys.

    Source: FlashAttention-2, csrc/flash_attn/flash_api.cpp, mha_bwd (dq_accum, softmax_d, dk_expanded, dv_expanded).
    """
    query, key = args[1], args[2]
    batch, heads, length, head_dim = query.shape
    rows = round_up(length, 128)
    sizes = [4 * batch * heads * rows * round_up(head_dim, 32 if head_dim <= 128 else 64), 4 * batch * heads * rows]
    if key.shape[1] != heads:
        sizes += [query.element_size() * batch * key.shape[2] * heads * head_dim] * 2
    return sizes


CUDA_SCRATCH: Mapping[Any, ScratchRule] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward_scratch,
}
"""Bytes that kernels allocate for themselves; they count in ``torch.cuda``'s statistics."""
