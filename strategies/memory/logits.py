"""How the losses cut up the tokens."""

from __future__ import annotations

from strategies.units import ceil_div, next_power_of_two

LOSS_CHUNKS = 8
"""Parts of the chunked loss, as in torchtitan's ``chunked_cross_entropy``."""


FEWEST_CHUNK_TOKENS = 4
"""Products of one or two rows are other kernels: over 152k words in fp32 12 times less exact (torch 2.13, MKL)."""


def fused_chunk_tokens(num_tokens: int, *, hidden_size: int, vocab_size: int) -> int:
    """Return the tokens whose logits the fused loss holds at once: about as many bytes as all hidden states.

    Source: Hsu et al. 2024, arXiv:2410.10989 (Liger-Kernel), ops/fused_linear_cross_entropy.py: as many chunks as the
    vocabulary is wider than the hidden size, rounded to powers of two; ours is the lower end.
    """
    tokens = next_power_of_two(ceil_div(num_tokens, max(1, ceil_div(vocab_size, hidden_size))))
    return min(num_tokens, max(tokens, FEWEST_CHUNK_TOKENS))
