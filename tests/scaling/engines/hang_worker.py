"""Runs on two ranks: rank 1 stops in the middle of a step; rank 0 says how long it waited for it.

python -m tests.scaling.engines.hang_worker STRATEGY TIMEOUT_S
"""

from __future__ import annotations

import os
import sys
import time

import torch

from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import join_process_group, read_launch_environment
from scaling.loop import train_step
from scaling.meter import NoMeter
from tests.scaling.decisions import toy_decision
from tests.scaling.engines.toy import Tokens, Toy

FAR_TOO_LONG_S = 120


def main(strategy: str, timeout_s: int) -> None:
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=timeout_s)
    tokens = Tokens()
    batch = tokens.batch([(1.0,)])
    engine = build_engine(
        Toy(tokens.gradients),
        decision=toy_decision(strategy, world_size=2, accumulation=1),
        settings=OptimizerSettings(weight_decay=0.0),
        device=torch.device("cpu"),
        meter=NoMeter(),
    )
    train_step(engine, [batch])
    start = time.perf_counter()
    if launch.rank == 1:
        engine.sum_over_ranks(1)
        time.sleep(FAR_TOO_LONG_S)
    try:
        train_step(engine, [batch])
    except RuntimeError:
        print(f"gave up after {time.perf_counter() - start:.1f} s", flush=True)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
