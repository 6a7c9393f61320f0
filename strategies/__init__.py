"""Decide how to train: pure arithmetic, no framework.

``strategies.plan(...)`` is the planner as a call; the noun `Plan` is in the module of that name.
"""

from strategies.library import plan

__all__ = ["plan"]
