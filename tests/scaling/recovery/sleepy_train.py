"""scaling.train with a rank that falls asleep in the middle of its third step.

python -m tests.scaling.recovery.sleepy_train RANK, then the flags of scaling.train (under torchrun for several ranks)
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from scaling.engines.ddp import DdpEngine
from scaling.train import main

FAR_TOO_LONG_S = 300
calls = 0


def fall_asleep() -> None:
    time.sleep(FAR_TOO_LONG_S)


def make_sleepy(rank: int) -> None:
    real = DdpEngine._forward

    def forward(engine: DdpEngine, **inputs: Any) -> Any:
        global calls
        calls += 1
        if calls == 6 and engine.rank == rank:  # two micro batches a step
            fall_asleep()
        return real(engine, **inputs)

    DdpEngine._forward = forward  # type: ignore[method-assign]


if __name__ == "__main__":
    make_sleepy(int(sys.argv[1]))
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(main(sys.argv[2:]))
