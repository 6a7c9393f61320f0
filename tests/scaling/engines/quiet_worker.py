"""Runs in every rank: two steps of DDP over a model of which every parameter is used."""

from __future__ import annotations

import os

import torch

from scaling.batch import causal_batch
from scaling.engines.ddp import DdpEngine
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import join_process_group, leave_process_group, read_launch_environment
from scaling.loop import train_step
from scaling.meter import NoMeter
from strategies.job import Precision
from tests.scaling.decisions import toy_decision
from tests.scaling.engines.test_ddp_memory import Deep


def main() -> None:
    launch = read_launch_environment(os.environ)
    device = torch.device("cpu")
    join_process_group(launch, device=device, timeout_s=60)
    engine = DdpEngine(
        Deep(),
        decision=toy_decision("ddp", world_size=2, accumulation=2, precision=Precision.FP32),
        settings=OptimizerSettings(weight_decay=0.0),
        device=device,
        meter=NoMeter(),
    )
    engine.set_learning_rate(1e-4)
    for _ in range(2):
        train_step(engine, [causal_batch(torch.tensor([[1, 2, 3]]))] * 2)
    engine.close()
    leave_process_group(launch)
    print("trained")


if __name__ == "__main__":
    main()
