"""Head and loss as one function over chunks of tokens, one after the other: the logits of all tokens never exist.

The gradient of the logits is known as soon as they are, so each chunk's gradients are made in the forward pass: what is
kept for backward is one gradient of the hidden states and one of the head's weight, not the logits or their softmax.
Nothing is computed twice. The idea and the size of the chunks are those of Liger-Kernel's fused linear cross-entropy
(Hsu et al. 2024, arXiv:2410.10989, section 3.2), with plain torch operators in place of a kernel for the softmax.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from transformers.modeling_outputs import CausalLMOutput

from scaling.errors import ModelError
from scaling.losses import IGNORED_LABEL
from scaling.number_formats import AUTOCAST
from strategies.job import Precision
from strategies.memory.logits import fused_chunk_tokens
from strategies.search import FUSED_LOSS_FAMILIES


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsScale:
    """What a model makes of the head's product before the softmax."""

    factor: float = 1.0
    cap: float | None = None
    """Logits are squashed between minus and plus this, by a tanh."""


def compute_loss_fused(model: Any, *, precision: Precision) -> None:
    """Give the model a forward that takes ``targets`` (batch, seq) and returns the loss summed over them.

    ``targets`` hold what follows each token. The model's own forward is not used any more in this process.

    Raises:
        ModelError: the model's logits may be something else than the head's product.
    """
    model_type = model.config.model_type
    if model_type not in FUSED_LOSS_FAMILIES:
        raise ModelError(
            f"loss=fused is not tested with model_type={model_type!r}, whose logits may not be what the head gives; "
            f"use loss=standard, or one of {', '.join(sorted(FUSED_LOSS_FAMILIES))}"
        )
    head, scale = model.get_output_embeddings(), logits_scale(model.config)
    compute_format = AUTOCAST.get(precision)

    def of_head(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return head_loss(head, hidden, targets, scale=scale, compute_format=compute_format)

    def forward(input_ids: torch.Tensor, targets: torch.Tensor, **more: torch.Tensor) -> CausalLMOutput:
        hidden = model.base_model(input_ids=input_ids, **more).last_hidden_state  # a mask of padding, for instance
        # Through the head as a module, where engines hang what gathers its weight.
        loss = head(hidden.flatten(0, 1), targets.flatten())
        return CausalLMOutput(loss=loss)

    head.forward = of_head
    model.forward = forward


def logits_scale(config: Any) -> LogitsScale:
    """Return the scale under the names that transformers 5.24 gives it: Cohere, Granite, Gemma 2."""
    config = config.get_text_config()
    factor = getattr(config, "logit_scale", None) or 1.0
    return LogitsScale(
        factor=factor / (getattr(config, "logits_scaling", None) or 1.0),
        cap=getattr(config, "final_logit_softcapping", None),
    )


def head_loss(
    head: Any, hidden: torch.Tensor, targets: torch.Tensor, *, scale: LogitsScale, compute_format: torch.dtype | None
) -> torch.Tensor:
    """Return the loss summed over ``targets`` (token); ``hidden`` is (token, hidden size).

    ``compute_format``: that of products; None for the weight's own.
    """
    settings = (scale, compute_format, torch.is_grad_enabled())
    loss: torch.Tensor = _HeadLoss.apply(hidden, head.weight, head.bias, targets, *settings)  # type: ignore[no-untyped-call]
    return loss


def chunks(num_tokens: int, *, chunk_tokens: int) -> Iterable[slice]:
    """Return the tokens of every chunk; the last one may be shorter."""
    return (slice(first, first + chunk_tokens) for first in range(0, num_tokens, chunk_tokens))


class _HeadLoss(torch.autograd.Function):
    """Cross-entropy of ``hidden @ weight.T + bias``, summed over the targets that are not ignored."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        scale: LogitsScale,
        compute_format: torch.dtype | None,
        with_gradients: bool,
    ) -> torch.Tensor:
        compute_format = compute_format or weight.dtype
        gradients = _Gradients(hidden, weight, bias) if with_gradients else None
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        matrix = weight.detach().to(compute_format)
        vocab_size, hidden_size = weight.shape
        chunk_tokens = fused_chunk_tokens(len(hidden), hidden_size=hidden_size, vocab_size=vocab_size)
        for tokens in chunks(len(hidden), chunk_tokens=chunk_tokens):
            part = hidden[tokens].to(compute_format)
            chunk_loss, slopes = _loss_and_slopes(part, targets[tokens], matrix, bias, scale)
            loss += chunk_loss
            if gradients is not None:
                gradients.add(tokens, slopes, part, matrix)
            del slopes  # before the next chunk's
        ctx.gradients = gradients
        return loss

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        found = gradients.times(outer[0])
        return (*found, None, None, None, None)


def _loss_and_slopes(
    part: torch.Tensor, targets: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, scale: LogitsScale
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed loss of one chunk and its gradient with respect to the head's product."""
    logits = _logits(part, matrix, bias, scale)
    log_probabilities = torch.log_softmax(logits, dim=-1)
    is_counted = (targets != IGNORED_LABEL).unsqueeze(1)
    index = targets.clamp(min=0).unsqueeze(1)
    loss = -(log_probabilities.gather(1, index) * is_counted).sum()
    minus_one = torch.full_like(index, -1, dtype=logits.dtype)
    slopes = log_probabilities.exp_().scatter_add_(1, index, minus_one).mul_(is_counted)
    return loss, _through_scale(slopes, logits, scale).to(part.dtype)


def _logits(part: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, scale: LogitsScale) -> torch.Tensor:
    """Return the logits of one chunk in fp32."""
    logits = torch.mm(part, matrix.t())
    if bias is not None:
        logits += bias
    logits = logits.float()
    if scale.factor != 1.0:
        logits.mul_(scale.factor)
    return logits if scale.cap is None else logits.div_(scale.cap).tanh_().mul_(scale.cap)


def _through_scale(slopes: torch.Tensor, logits: torch.Tensor, scale: LogitsScale) -> torch.Tensor:
    """Return the gradient of the head's product from that of the logits; takes both apart."""
    if scale.cap is not None:
        slopes.mul_(logits.div_(scale.cap).square_().neg_().add_(1.0))
    return slopes if scale.factor == 1.0 else slopes.mul_(scale.factor)


class _Gradients:
    """Gradients of the summed loss, put together chunk by chunk, in the format of what they belong to."""

    def __init__(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._hidden = torch.empty_like(hidden)
        self._weight = torch.zeros_like(weight) if weight.requires_grad else None
        self._bias = torch.zeros_like(bias) if bias is not None and bias.requires_grad else None

    def add(self, tokens: slice, slopes: torch.Tensor, part: torch.Tensor, matrix: torch.Tensor) -> None:
        """Take in the gradient of the logits of some tokens."""
        self._hidden[tokens] = torch.mm(slopes, matrix)
        if self._weight is not None and self._weight.dtype == slopes.dtype:
            self._weight.addmm_(slopes.t(), part)
        elif self._weight is not None:
            self._weight += torch.mm(slopes.t(), part)
        if self._bias is not None:
            self._bias += slopes.sum(0)

    def times(self, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of hidden states, weight and bias, multiplied in place."""
        found = (self._hidden, self._weight, self._bias)
        return tuple(None if each is None else each.mul_(factor) for each in found)
