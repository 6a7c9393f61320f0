"""How the losses cut up the tokens."""

from __future__ import annotations

LOSS_CHUNKS = 8
"""Parts of the chunked loss, as in torchtitan's ``chunked_cross_entropy``."""
