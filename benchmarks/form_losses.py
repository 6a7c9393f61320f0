"""Three ways of computing a loss, for tracing: all logits at once, softmax part by part, the trainer's fused loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling import fused_loss
from scaling.losses import IGNORED_LABEL, next_token_labels, token_sum_loss
from scaling.trace.patching import patched
from strategies.job import LossImplementation
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


def _scaled(logits: Tensor, module: Any) -> Tensor:
    """Return logits as the model's own forward scales or caps them (Gemma 2, Cohere, Granite)."""
    config = module.config
    if cap := getattr(config, "final_logit_softcapping", None):
        return torch.tanh(logits / cap) * cap
    if scale := getattr(config, "logit_scale", None):
        return logits * scale
    scaling = getattr(config, "logits_scaling", None)
    return logits / scaling if scaling else logits
