"""Head and loss over a few parts of the tokens, one after the other: the logits of all tokens never exist.

The gradient of the logits is known as soon as they are, so each part's gradients are made in the forward pass: what is
kept for backward is one gradient of the hidden states and one of the head's weight, not the logits or their softmax.
Nothing is computed twice. (Hsu et al. 2024, arXiv:2410.10989, section 3.2, with plain torch operators.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from transformers.modeling_outputs import CausalLMOutput

from scaling.errors import ModelError
from scaling.losses import IGNORED_LABEL
from strategies.job import Precision
from strategies.memory.logits import LOSS_CHUNKS

FAMILIES = frozenset(
    {
        "cohere", "falcon", "gemma", "gemma2", "gpt2", "gpt_neox", "gptj", "granite", "llama", "mistral", "mixtral",
        "olmo2", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "stablelm", "starcoder2",
    }
)  # fmt: skip
"""Whose logits are the head's product with the last hidden state, but for `LogitsScale`: tested, one by one."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsScale:
    """What a model makes of the head's product before the softmax."""

    factor: float = 1.0
    cap: float | None = None
    """Logits are squashed between minus and plus this, by a tanh."""


def compute_loss_in_chunks(model: Any, *, precision: Precision) -> None:
    """Give the model a forward that takes ``targets`` (batch, seq) and returns the loss summed over them.

    ``targets`` hold what follows each token. The model's own forward is not used any more in this process.

    Raises:
        ModelError: the model's logits may be something else than the head's product.
    """
    model_type = model.config.model_type
    if model_type not in FAMILIES:
        raise ModelError(
            f"loss=chunked is not tested with model_type={model_type!r}, whose logits may not be what the head gives; "
            f"use loss=standard, or one of {', '.join(sorted(FAMILIES))}"
        )
    head, scale = model.get_output_embeddings(), _logits_scale(model.config)
    compute_format = torch.bfloat16 if precision is Precision.BF16_AUTOCAST else None

    def head_loss(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        weight, bias = head.weight, head.bias
        settings = (scale, compute_format, torch.is_grad_enabled())
        loss: torch.Tensor = _HeadLoss.apply(hidden, weight, bias, targets, *settings)  # type: ignore[no-untyped-call]
        return loss

    def forward(input_ids: torch.Tensor, targets: torch.Tensor) -> CausalLMOutput:
        hidden = model.base_model(input_ids=input_ids).last_hidden_state
        # Through the head as a module, where engines hang what gathers its weight.
        loss = head(hidden.flatten(0, 1), targets.flatten())
        return CausalLMOutput(loss=loss)

    head.forward = head_loss
    model.forward = forward


def _logits_scale(config: Any) -> LogitsScale:
    """Return the scale under the names that transformers 5.24 gives it: Cohere, Granite, Gemma 2."""
    config = config.get_text_config()
    factor = getattr(config, "logit_scale", None) or 1.0
    return LogitsScale(
        factor=factor / (getattr(config, "logits_scaling", None) or 1.0),
        cap=getattr(config, "final_logit_softcapping", None),
    )


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
        rows = -(-len(hidden) // LOSS_CHUNKS)
        for first in range(0, len(hidden), rows):
            part, wanted = hidden[first : first + rows].to(compute_format), targets[first : first + rows]
            logits = _logits(part, matrix, bias, scale)
            log_probabilities = torch.log_softmax(logits, dim=-1)
            is_counted = (wanted != IGNORED_LABEL).unsqueeze(1)
            index = wanted.clamp(min=0).unsqueeze(1)
            loss -= (log_probabilities.gather(1, index) * is_counted).sum()
            if gradients is not None:
                slopes = log_probabilities.exp_().scatter_add_(
                    1, index, -torch.ones_like(is_counted, dtype=logits.dtype)
                )
                slopes = _through_scale(slopes.mul_(is_counted), logits, scale).to(compute_format)
                del logits, log_probabilities
                gradients.add(first, slopes, part, matrix)
                del slopes
        ctx.gradients = gradients
        return loss

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        found = gradients.times(outer[0])
        return (*found, None, None, None, None)


def _logits(part: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, scale: LogitsScale) -> torch.Tensor:
    """Return the logits of one part in fp32."""
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
    """Gradients of the summed loss, put together part by part, in the format of what they belong to."""

    def __init__(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._hidden = torch.empty_like(hidden)
        self._weight = torch.zeros_like(weight) if weight.requires_grad else None
        self._bias = torch.zeros_like(bias) if bias is not None and bias.requires_grad else None

    def add(self, first: int, slopes: torch.Tensor, part: torch.Tensor, matrix: torch.Tensor) -> None:
        """Take in the gradient of the logits of the rows from ``first`` on."""
        self._hidden[first : first + len(slopes)] = torch.mm(slopes, matrix)
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
