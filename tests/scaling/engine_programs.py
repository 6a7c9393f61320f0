"""Programs for simulated and real ranks: several small setups one after another in one process."""

from __future__ import annotations

import gc
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.allocator_count import counted
from benchmarks.small_llama import VOCAB_SIZE, Setup, run
from scaling.meter import Meter, StorageMeter
from scaling.ownership import Owners
from strategies.estimate import Phase

DDP = Setup(framework="ddp", num_layers=2, hidden_size=64, intermediate_size=128, bucket_size=100_000)
ZERO = replace(DDP, framework="deepspeed")
SETUPS = {
    "ddp": DDP,
    "fsdp2": replace(DDP, framework="fsdp2"),
    "zero0": replace(ZERO, zero_stage=0),
    "zero1": replace(ZERO, zero_stage=1, gradient_accumulation_steps=2),
    "zero2": replace(ZERO, zero_stage=2),
    "zero3": replace(ZERO, zero_stage=3, gradient_accumulation_steps=2),
    "zero2-offload": replace(ZERO, zero_stage=2, offload_optimizer=True),
    "zero3-offload": replace(ZERO, zero_stage=3, offload_optimizer=True, offload_param=True),
}


def measure_setups(names: tuple[str, ...], folder: Path, _: Meter) -> None:
    """Leave the measurement of every setup in a file per rank."""
    _save({name: _metered(SETUPS[name], StorageMeter).measurement() for name in names}, folder)


def watch_setups(names: tuple[str, ...], folder: Path, _: Meter) -> None:
    """Leave what the meter attributed wrongly in every setup."""
    _save({name: _metered(SETUPS[name], WatchingMeter).wrong_claims() for name in names}, folder)


def count_setups(names: tuple[str, ...], folder: Path, _: Meter) -> None:
    """Leave the meter's and the allocator's peak of every span; in fp32, whose kernels need no scratch memory."""
    counts = {}
    for name in names:
        gc.collect()  # or what the engine before left in cycles would be freed under the allocator's eyes
        meter = StorageMeter()
        meter.start()
        kept, spans = counted(partial(run, replace(SETUPS[name], precision="fp32")), meter)
        meter.stop()
        del kept
        counts[name] = (meter.measurement(), spans)
    _save(counts, folder)


def _save(outcomes: dict[str, Any], folder: Path) -> None:
    (folder / str(dist.get_rank())).write_bytes(pickle.dumps(outcomes))


def _metered(setup: Setup, kind: Any) -> Any:
    meter = kind(rank=dist.get_rank(), world_size=dist.get_world_size(), vocab_size=VOCAB_SIZE)
    meter.start()
    kept = run(setup, meter)
    meter.stop()
    del kept
    return meter


class WatchingMeter(StorageMeter):
    """Also asks all owners after every single operator: slow, and nothing that an owner holds can escape."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._watched: list[Owners] = []
        self._seen: dict[int, str] = {}

    def attach(self, owners: Owners) -> None:
        super().attach(owners)
        self._watched.insert(0, owners)

    def _observe(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        super()._observe(func, args, result)
        for owners in self._watched:
            for item in owners():
                number = self.log.number(item.tensor) if type(item.tensor).__name__ != "DTensor" else None
                if number is not None and item.tensor.untyped_storage().nbytes():
                    self._seen.setdefault(number, item.cause.value)

    def wrong_claims(self) -> list[str]:
        """Return a line for every storage that training made and whose first owner and the meter disagree."""
        found = []
        for number, owner in self._seen.items():
            count = self._attribution.cause(number)
            storage = self.log.storages[number]
            birth = self.log.events[storage.event]
            if count is not None and count[0].value != owner and birth.phase != Phase.INITIALISE:
                found.append(f"{owner} counted as {count[0].value}: {storage.shape} by {birth.op} in {birth.phase}")
        return found
