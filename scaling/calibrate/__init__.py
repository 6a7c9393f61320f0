"""Measures what this machine reaches: see `calibrate`."""

from scaling.calibrate.run import calibrate, default_ranks

__all__ = ["calibrate", "default_ranks"]
