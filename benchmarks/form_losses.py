"""The trainer's three losses, for tracing: all logits at once, softmax part by part, head and loss as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from scaling import fused_loss
from scaling.losses import chunked_token_sum_loss, next_token_labels, token_sum_loss
from scaling.trace.patching import patched
from strategies.job import LossImplementation
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
    return chunked_token_sum_loss(module(input_ids=batch["input_ids"]).logits, batch["labels"])


def _fused(module: Any, batch: Batch) -> Tensor:
    """Return the trainer's own fused loss over two whole chunks: all further ones repeat the second."""
    hidden, labels = _hidden_and_labels(module, batch)
    compute_format = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    with patched(fused_loss, "chunks", _two_chunks):
        return fused_loss.head_loss(
            module.get_output_embeddings(),
            hidden,
            labels,
            scale=fused_loss.logits_scale(module.config),
            compute_format=compute_format,
        )


def _two_chunks(num_tokens: int, *, chunk_tokens: int) -> list[slice]:
    return [slice(chunk_tokens)] * 2


def _hidden_and_labels(module: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    hidden = module.base_model(input_ids=batch["input_ids"]).last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1]), next_token_labels(batch["labels"]).reshape(-1)
