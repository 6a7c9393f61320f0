"""Real ranks on this machine: one process each, gloo between them, one measurement of each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from scaling.local_ranks import run_ranks
from scaling.meter import Measurement
from scaling.simulate import Program

if TYPE_CHECKING:
    import torch

SETTLE_S = 1.0
"""Far longer than gloo's thread, which has just woken us, needs to drop its reference too."""


def measure_ranks(
    program: Program, *, world_size: int, vocab_size: int | None = None, timeout_s: int = 300
) -> tuple[Measurement, ...]:
    """Return what every rank of ``world_size`` processes holds while all run ``program``, in rank order.

    Gloo's own copies (it clones the input of a reduce-scatter) do not count: no other backend makes them. Collectives
    are waited for at once, which costs time only; `Measurement.num_late_frees` says how often gloo's thread still held
    a tensor that the program had let go.
    """
    return run_ranks(partial(_metered, program, vocab_size), world_size=world_size, timeout_s=timeout_s)


def _metered(program: Program, vocab_size: int | None, device: torch.device) -> Measurement:
    import torch.distributed as dist

    from scaling.collectives import completed_collectives
    from scaling.meter import StorageMeter

    meter = StorageMeter(rank=dist.get_rank(), world_size=dist.get_world_size(), vocab_size=vocab_size)
    with completed_collectives(settle_s=SETTLE_S):
        meter.start()
        kept = program(meter)
        meter.stop()
        del kept
    return meter.measurement()
