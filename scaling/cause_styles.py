"""Colours and hatches of bytes by cause, the same in every picture."""

from __future__ import annotations

# What stays lies at the bottom. The colours, Paul Tol's "muted" palette and greys, can be told apart without colour
# vision; hatches separate neighbours further.
STYLES: dict[str, tuple[str, str]] = {
    "parameters": ("#332288", ""),
    "master_weights": ("#88CCEE", "//"),
    "optimizer_states": ("#44AA99", ""),
    "gradients": ("#117733", "xx"),
    "gradient_accumulation": ("#999933", ""),
    "communication_buckets": ("#DDCC77", ".."),
    "gathered_parameters": ("#AA4499", ""),
    "activations": ("#CC6677", "\\\\"),
    "recomputed_block": ("#882255", ""),
    "logits": ("#555555", "--"),
    "step_temporaries": ("#111111", ""),
    "other": ("#BBBBBB", ""),
}
"""By the name of the cause: fill, hatch."""
