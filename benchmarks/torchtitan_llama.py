"""The Llama of torchtitan as it was when its published memory figures were logged, for tracing.

Memory depends on which intermediate tensors exist and when they go, so the order of statements follows the original:
torchtitan/models/llama/model.py and parallelisms/parallelize_llama.py at the commits named in
``benchmarks/reference/fsdp2_measured.csv``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

aten: Any = torch.ops.aten

_KEPT = frozenset(
    {
        aten.mm.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanShape:
    """Llama 3.1 8B at 8192 tokens, the model of every published row."""

    num_layers: int = 32
    width: int = 4096
    num_heads: int = 32
    num_key_value_heads: int = 8
    hidden: int = 14336
    vocab_size: int = 128256
    seq_len: int = 8192
    native_norm: bool = False
    """torch's rms_norm (from March 2025 on) instead of one written out."""
    logits_in_fp32: bool = False
    """The model returns fp32 logits (2024) instead of leaving the cast to the loss."""


class WrittenNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)

    def forward(self, x: Tensor) -> Tensor:
        output = self._norm(x.float()).type_as(x)
        return output * self.weight


class NativeNorm(nn.Module):
    """``nn.RMSNorm`` of torch 2.7: a composition of operators, where later versions have one kernel on CUDA."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = aten.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)
        return output


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis[: xq_.shape[1]].view(1, xq_.shape[1], 1, xq_.shape[-1])
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


def repeat_kv(x: Tensor, repeats: int) -> Tensor:
    batch, length, heads, head_dim = x.shape
    expanded = torch.unsqueeze(x, dim=3).expand(batch, length, heads, repeats, head_dim)
    return expanded.reshape(batch, length, heads * repeats, head_dim)


class Attention(nn.Module):
    def __init__(self, shape: TitanShape) -> None:
        super().__init__()
        self.head_dim = shape.width // shape.num_heads
        self.repeats = shape.num_heads // shape.num_key_value_heads
        narrow = shape.num_key_value_heads * self.head_dim
        self.wq = nn.Linear(shape.width, shape.width, bias=False)
        self.wk = nn.Linear(shape.width, narrow, bias=False)
        self.wv = nn.Linear(shape.width, narrow, bias=False)
        self.wo = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        batch, length, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(batch, length, -1, self.head_dim)
        xk = xk.view(batch, length, -1, self.head_dim)
        xv = xv.view(batch, length, -1, self.head_dim)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis=freqs_cis)
        keys = repeat_kv(xk, self.repeats)
        values = repeat_kv(xv, self.repeats)
        xq = xq.transpose(1, 2)
        xk = keys.transpose(1, 2)
        xv = values.transpose(1, 2)
        output = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        output = output.transpose(1, 2).contiguous()
        output = output.view(batch, length, -1)
        result: Tensor = self.wo(output)
        return result


class FeedForward(nn.Module):
    def __init__(self, shape: TitanShape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.width, shape.hidden, bias=False)
        self.w2 = nn.Linear(shape.hidden, shape.width, bias=False)
        self.w3 = nn.Linear(shape.width, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return result


class Block(nn.Module):
    def __init__(self, shape: TitanShape) -> None:
        super().__init__()
        norm = NativeNorm if shape.native_norm else WrittenNorm
        self.attention = Attention(shape)
        self.feed_forward = FeedForward(shape)
        self.attention_norm = norm(shape.width)
        self.ffn_norm = norm(shape.width)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        result: Tensor = checkpoint(self._compute, x, freqs_cis, context_fn=selective_contexts, **settings)
        return result

    def _compute(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        out: Tensor = h + self.feed_forward(self.ffn_norm(h))
        return out


def selective_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of torchtitan's op-level checkpointing: attention and every other matrix product are kept."""
    products: dict[bool, int] = defaultdict(int)

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op == aten.mm.default:
            products[context.is_recompute] += 1
        skipped = op == aten.mm.default and products[context.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if op in _KEPT and not skipped else CheckpointPolicy.PREFER_RECOMPUTE

    make: Callable[..., Any] = create_selective_checkpoint_contexts
    forward, recomputation = make(policy)
    return forward, recomputation


class TitanLlama(nn.Module):
    def __init__(self, shape: TitanShape) -> None:
        super().__init__()
        self.logits_in_fp32 = shape.logits_in_fp32
        self.tok_embeddings = nn.Embedding(shape.vocab_size, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = (NativeNorm if shape.native_norm else WrittenNorm)(shape.width)
        self.output = nn.Linear(shape.width, shape.vocab_size, bias=False)
        angles = shape.width // shape.num_heads // 2
        self.register_buffer("freqs_cis", torch.empty(shape.seq_len, angles, dtype=torch.complex64))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.freqs_cis)
        output: Tensor = self.output(self.norm(h))
        return output.float() if self.logits_in_fp32 else output
