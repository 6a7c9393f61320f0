"""Checkpoints that do not depend on the strategy or on the number of ranks that wrote them; docs/checkpoints.md."""
