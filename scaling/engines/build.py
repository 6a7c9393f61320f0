"""From the strategy's name to its engine: the one place that knows both."""

from __future__ import annotations

import torch
from torch import nn

from scaling.engines.base import Engine
from scaling.engines.ddp import DdpEngine
from scaling.engines.deepspeed import DeepSpeedEngine
from scaling.engines.fsdp2 import Fsdp2Engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.meter import PhaseMeter
from scaling.tasks.base import Task
from strategies.decision import Decision
from strategies.plan import StrategyName

ENGINES: dict[StrategyName, type[DdpEngine] | type[DeepSpeedEngine] | type[Fsdp2Engine]] = {
    StrategyName.DDP: DdpEngine,
    StrategyName.ZERO1: DeepSpeedEngine,
    StrategyName.ZERO2: DeepSpeedEngine,
    StrategyName.ZERO3: DeepSpeedEngine,
    StrategyName.FSDP2: Fsdp2Engine,
}


def build_engine(
    model: nn.Module,
    *,
    decision: Decision,
    settings: OptimizerSettings,
    device: torch.device,
    meter: PhaseMeter,
    task: Task | None = None,
) -> Engine:
    """Return the engine of the plan's strategy around ``model``, which it may take apart.

    ``task``: None for causal language modelling.
    """
    engine: Engine = ENGINES[decision.plan.strategy](
        model, decision=decision, settings=settings, device=device, meter=meter
    )
    if task is not None:
        engine.task = task
    return engine
