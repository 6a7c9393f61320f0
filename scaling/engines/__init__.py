"""Engines: the only places that know how a strategy wraps, synchronises and steps a model."""
