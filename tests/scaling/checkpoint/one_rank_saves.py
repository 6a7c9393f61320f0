"""Runs in two ranks: the second one's state cannot be saved; then the first one alone saves, as under a mistaken
``if rank == 0``. Each prints what became of it.

python -m tests.scaling.checkpoint.one_rank_saves FOLDER (under torchrun)
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import scaling.checkpoint.checkpoints
from scaling.checkpoint.checkpoints import Checkpoints
from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.snapshot import Snapshot
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import join_process_group, read_launch_environment
from scaling.meter import NoMeter
from tests.scaling.checkpoint.alone import FACTS, TOKENS, state
from tests.scaling.decisions import toy_decision
from tests.scaling.engines.toy import Toy


def refuse(*state: Any) -> Snapshot:
    raise CheckpointError("a state that cannot be cut")


def main(folder: Path) -> None:
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=60)
    engine = build_engine(
        Toy(TOKENS.gradients),
        decision=toy_decision("fsdp2", world_size=2, accumulation=1),
        settings=OptimizerSettings(weight_decay=0.0),
        device=torch.device("cpu"),
        meter=NoMeter(),
    )
    saved = Checkpoints(folder, FACTS, meeting=Meeting(timeout_s=2))
    with pytest.MonkeyPatch.context() as patch:
        if not launch.is_main:
            patch.setattr(scaling.checkpoint.checkpoints, "take_snapshot", refuse)
        try:
            saved.save(engine, state(0))
        except CheckpointError as error:
            print(f"rank {launch.rank}: {error}", flush=True)
    saved.save(engine, state(1))
    if launch.is_main:
        start = time.perf_counter()
        try:
            saved.save(engine, state(2))
        except CheckpointError as error:
            print(f"after {time.perf_counter() - start:.1f} s: {error}", flush=True)
    else:
        time.sleep(5)
    os._exit(0)  # a group one of whose ranks has given up is not ended in good order


if __name__ == "__main__":
    main(Path(sys.argv[1]))
