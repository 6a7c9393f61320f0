"""Trace training steps of a real module on tensors without data: exact bytes by phase and cause, no GPU, no weights."""
