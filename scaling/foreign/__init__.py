"""Weights out of folders that other programs have written, read without running anything that is in them."""
