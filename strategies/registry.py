"""Every strategy by name, simplest first."""

from __future__ import annotations

from strategies.base import Strategy
from strategies.ddp import Ddp
from strategies.fsdp2 import Fsdp2
from strategies.mirrored import Mirrored
from strategies.plan import StrategyName
from strategies.zero import Zero

STRATEGIES: dict[StrategyName, Strategy] = {
    StrategyName.DDP: Ddp(),
    StrategyName.ZERO1: Zero(stage=1),
    StrategyName.ZERO2: Zero(stage=2),
    StrategyName.ZERO3: Zero(stage=3),
    StrategyName.FSDP2: Fsdp2(),
    StrategyName.MIRRORED: Mirrored(),
}
"""The order is the order of preference among plans that fit."""
