"""One update by plain PyTorch: one process, the whole batch at once, the loss of the library's own forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.nn import functional

from scaling.auto_classes import AUTO_CLASSES
from scaling.batch import Batch
from scaling.models import build_config, kind_of
from strategies.decision import Decision
from strategies.load_model import resolve_model
from strategies.model_spec import TaskKind

PADDING_ID = 258


@dataclass(frozen=True, kw_only=True)
class PlainUpdate:
    """What one step of gradient descent with a learning rate of 1 came to."""

    loss: float
    grad_norm: float
    weights: dict[str, torch.Tensor]


def plain_evaluation(decision: Decision, batch: Batch, weights: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return loss and accuracy of a classifier on samples that it sees all at once."""
    model = _model(decision, weights).eval()
    with torch.no_grad():
        outputs = model(**batch.inputs, labels=batch.labels)
    is_right = outputs.logits.argmax(-1) == batch.labels
    return {"eval_loss": float(outputs.loss), "accuracy": sum(is_right.tolist()) / len(is_right)}


def plain_update(decision: Decision, batches: list[Batch], weights: dict[str, torch.Tensor]) -> PlainUpdate:
    """Return the update of a model that starts at ``weights`` and sees all ``batches`` as one."""
    model = _model(decision, weights).train()
    inputs = {name: _joined([batch.inputs[name] for batch in batches], name) for name in batches[0].inputs}
    loss = _loss(model, inputs, _joined([batch.labels for batch in batches], "labels"))
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    moved = {name: weights[name] - gradients[name].reshape(weights[name].shape) for name in gradients}
    return PlainUpdate(loss=float(loss.detach()), grad_norm=float(norm), weights=moved)


def _model(decision: Decision, weights: dict[str, torch.Tensor]) -> Any:
    config = build_config(resolve_model(decision.model))
    model: Any = getattr(transformers, AUTO_CLASSES[kind_of(config)]).from_config(config, dtype=torch.float32)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    model.load_state_dict({name: each.reshape(shapes[name]) for name, each in weights.items()}, strict=False)
    return model


def _loss(model: Any, inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor
    if kind_of(model.config) is TaskKind.CONTRASTIVE:
        found = model(**inputs, return_loss=True).loss
    else:
        found = model(**inputs, labels=labels).loss
    return found


def _joined(parts: list[torch.Tensor], name: str) -> torch.Tensor:
    """Return the rows of all parts, texts padded to the longest of all."""
    if parts[0].dim() != 2:
        return torch.cat(parts)
    fill = {"labels": -100, "attention_mask": 0}.get(name, PADDING_ID)
    longest = max(part.shape[1] for part in parts)
    return torch.cat([functional.pad(part, (0, longest - part.shape[1]), value=fill) for part in parts])
