"""Closed forms for bytes on one GPU: model states, activations, logits, and their sum over phases."""
