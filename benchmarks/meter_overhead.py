"""What following storages costs: step time with the meter on, stopped and absent, and the memory of its log.

Method: one process, DDP over the small Llama; the fastest of 25 steps in each state, in turn, so that other load on the
machine meets all alike. Usage: ``python -m benchmarks.meter_overhead``; writes
``benchmarks/results/meter_overhead.json``.
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import benchmarks.small_llama as small_llama
from benchmarks.environment import environment
from scaling.meter import Meter, NoMeter, StorageMeter
from scaling.ownership import module_owners
from scaling.simulate import simulated_rank
from strategies.estimate import Phase

RESULT = Path(__file__).parent / "results" / "meter_overhead.json"
NUM_ROUNDS, STEPS_METERED = 25, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Cost on one workload."""

    tokens: int
    operators_per_step: int
    step_without_meter_s: float
    step_metered_s: float
    step_after_stop_s: float
    log_bytes: int
    """Host memory of the log and its claims after three steps."""

    @property
    def ratio(self) -> float:
        return self.step_metered_s / self.step_without_meter_s


def main() -> int:
    """Measure few and many tokens per step; print and store."""
    torch.set_num_threads(1)
    with simulated_rank(1):
        rows = [measure(tokens) for tokens in (8, 512)]
    for row in rows:
        print(
            f"{row.tokens} tokens, {row.operators_per_step} operators: {row.step_without_meter_s:.3f} s a step, "
            f"metered {row.ratio:.2f} x, stopped {row.step_after_stop_s / row.step_without_meter_s:.2f} x, "
            f"log {row.log_bytes / 2**20:.1f} MiB"
        )
    stored = {"environment": environment(), "rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}
    RESULT.write_text(json.dumps(stored, indent=1) + "\n")
    return 0


def measure(tokens: int) -> Overhead:
    """Return the cost on steps of ``tokens`` tokens."""
    model = small_llama.small_llama(small_llama.Setup(framework="ddp"))
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    input_ids = torch.randint(small_llama.VOCAB_SIZE, (1, tokens))

    def step(meter: Meter) -> None:
        with meter.phase(Phase.FORWARD):
            loss = wrapped(input_ids=input_ids, labels=input_ids).loss
        with meter.phase(Phase.BACKWARD):
            loss.backward()
        with meter.phase(Phase.OPTIMIZER_STEP):
            optimizer.step()
            optimizer.zero_grad()

    def new_meter() -> StorageMeter:
        meter = StorageMeter(vocab_size=small_llama.VOCAB_SIZE)
        meter.attach(lambda: module_owners(model, optimizer))
        return meter

    step(NoMeter())
    off, metered, stopped = [], [], []
    for _ in range(NUM_ROUNDS):
        off.append(_seconds(lambda: step(NoMeter())))
        meter = new_meter()
        meter.start()
        metered.append(_seconds(lambda: step(meter)))  # noqa: B023  # called at once
        meter.stop()
        stopped.append(_seconds(lambda: step(meter)))  # noqa: B023
    operators = meter.measurement().num_operators
    return Overhead(
        tokens=tokens,
        operators_per_step=operators,
        step_without_meter_s=min(off),
        step_metered_s=min(metered),
        step_after_stop_s=min(stopped),
        log_bytes=_log_bytes(new_meter(), step),
    )


def _seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _log_bytes(meter: StorageMeter, step: Callable[[Meter], None]) -> int:
    """Return bytes that Python allocated in the meter's own files and still holds after a few steps."""
    tracemalloc.start()
    meter.start()
    for _ in range(STEPS_METERED):
        step(meter)
    meter.stop()
    snapshot = tracemalloc.take_snapshot()
    tracemalloc.stop()
    own = snapshot.filter_traces(
        [tracemalloc.Filter(True, "*scaling/storage_log.py"), tracemalloc.Filter(True, "*scaling/meter/*")]
    )
    return sum(statistic.size for statistic in own.statistics("filename"))


if __name__ == "__main__":
    sys.exit(main())
