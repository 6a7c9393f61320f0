"""Logits and loss: the bytes of the last, widest tensors."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.job import Precision
from strategies.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsBytes:
    """Bytes of logits and loss at three moments."""

    forward_peak: int
    kept: int
    """Between forward and backward."""
    backward_peak: int
    head_backward: int
    """While the head's gradient is computed: the gradient of the logits in the format of the weights."""


def standard_loss(spec: ModelSpec, *, num_tokens: int, precision: Precision) -> LogitsBytes:
    """Return the bytes of Hugging Face's causal loss, which upcasts all logits to fp32 at once.

    Per logit: the fp32 log-softmax is kept (4). Forward peaks with the 16-bit logits, their fp32 copy and the
    log-softmax alive (2 + 4 + 4 = 10; 4 + 4 = 8 in fp32, where there is no copy); backward with the log-softmax, its
    incoming and its outgoing gradient (12). The caller must not keep the logits alive.
    Source: transformers 5.24.0, loss/loss_utils.py, ForCausalLMLoss; read off traces on meta, exact.
    """
    logits = num_tokens * spec.vocab_size
    forward = 8 if precision is Precision.FP32 else 10
    return LogitsBytes(
        forward_peak=forward * logits,
        kept=4 * logits,
        backward_peak=12 * logits,
        head_backward=precision.weight_bytes * logits,
    )
