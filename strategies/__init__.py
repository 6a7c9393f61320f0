"""Decide how to train: pure arithmetic, no framework."""
