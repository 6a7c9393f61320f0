"""Three ways of computing a loss, for tracing: what the trainer does, head and loss by parts, one fused function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.losses import IGNORED_LABEL, next_token_labels, token_sum_loss
from strategies.job import LossImplementation
from strategies.memory.features import fused_chunk_tokens
from strategies.memory.logits import LOSS_CHUNKS
from strategies.model_spec import TaskKind

Batch = Any


def loss_function(kind: LossImplementation, task: TaskKind) -> Callable[[nn.Module, Batch], Tensor]:
    """Return what runs a model on a batch and gives its loss; models without a causal loss only know their own."""
    if task is not TaskKind.CAUSAL_LM:
        return lambda module, batch: module(**batch).loss
    return {
        LossImplementation.STANDARD: _standard,
        LossImplementation.CHUNKED: _chunked,
        LossImplementation.FUSED: _fused,
    }[kind]


def _standard(module: Any, batch: Batch) -> Tensor:
    return token_sum_loss(module(input_ids=batch["input_ids"]).logits, batch["labels"])


def _chunked(module: Any, batch: Batch) -> Tensor:
    hidden, labels = _hidden_and_labels(module, batch)
    head = module.get_output_embeddings()
    losses = [
        functional.cross_entropy(
            _scaled(head(part), module).float(), target, ignore_index=IGNORED_LABEL, reduction="sum"
        )
        for part, target in zip(hidden.chunk(LOSS_CHUNKS), labels.chunk(LOSS_CHUNKS), strict=True)
    ]
    return torch.stack(losses).sum()


def _fused(module: Any, batch: Batch) -> Tensor:
    hidden, labels = _hidden_and_labels(module, batch)
    loss: Tensor = _FusedLoss.apply(hidden, module.get_output_embeddings().weight, labels)  # type: ignore[no-untyped-call]
    return loss


def _hidden_and_labels(module: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    hidden = module.base_model(input_ids=batch["input_ids"]).last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1]), next_token_labels(batch["labels"]).reshape(-1)


def _scaled(logits: Tensor, module: Any) -> Tensor:
    """Return logits as the model's own forward scales or caps them (Gemma 2, Cohere, Granite)."""
    config = module.config
    if cap := getattr(config, "final_logit_softcapping", None):
        return torch.tanh(logits / cap) * cap
    if scale := getattr(config, "logit_scale", None):
        return logits * scale
    scaling = getattr(config, "logits_scaling", None)
    return logits / scaling if scaling else logits


class _FusedLoss(torch.autograd.Function):
    """Memory of Liger's fused linear cross-entropy: gradients are computed in forward, chunk by chunk.

    Source: Hsu et al. 2024, arXiv:2410.10989 (Liger-Kernel), ops/fused_linear_cross_entropy.py.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        num_tokens, width = hidden.shape
        chunk = fused_chunk_tokens(num_tokens, hidden_size=width, vocab_size=weight.shape[0])
        hidden_gradient, weight_gradient = torch.zeros_like(hidden), torch.zeros_like(weight)
        losses = torch.zeros(num_tokens, dtype=torch.float32, device=hidden.device)
        for _ in range(2):  # all further chunks repeat the second
            part = hidden[:chunk]
            logits = part @ weight.t()
            hidden_gradient[:chunk] = (logits @ weight).to(hidden.dtype)
            weight_gradient += (logits.t() @ part).to(weight.dtype)
            del logits
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient, weight_gradient, None
