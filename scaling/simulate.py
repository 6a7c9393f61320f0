"""One rank of N in one process: the real engine on real, small tensors, over a process group that talks to nobody.

torch's fake process group answers every collective at once, with this rank's own data. Memory does not depend on the
values, so what one rank allocates is what it would allocate among N real ranks. Losses and weights mean nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import BaseContext

from scaling.meter import Measurement, Meter

Program = Callable[[Meter], object]
"""Builds an engine, runs steps under the meter's phases and returns what must live as long as the measurement.

It is sent to another process: a function of a module, or a partial of one."""


def simulate(
    program: Program,
    *,
    world_size: int,
    rank: int = 0,
    vocab_size: int | None = None,
    context: BaseContext | None = None,
) -> Measurement:
    """Return what one rank of ``world_size`` holds while it runs ``program``.

    In a fresh process each time: engines leave global state behind. ``vocab_size`` tells logits from activations;
    ``context`` says how the process starts (see `forked_from`), by default as a new interpreter.
    """
    with ProcessPoolExecutor(max_workers=1, mp_context=context or get_context("spawn")) as pool:
        return pool.submit(_run_simulated, program, world_size, rank, vocab_size).result()


def forked_from(modules: Sequence[str]) -> BaseContext:
    """Return a context whose processes start with ``modules`` imported, which saves the seconds that imports take.

    Only the first call in a process counts. The modules must start no threads.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    return context


@contextmanager
def simulated_rank(world_size: int, *, rank: int = 0) -> Iterator[None]:
    """Make this process one of ``world_size`` simulated ranks, alone on its node, for as long as the context lasts."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from scaling.collectives import completed_collectives

    before = dict(os.environ)
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1"})
    # Nobody listens here: the group exists before any framework would look for its address.
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        with completed_collectives(settle_s=0):
            yield
    finally:
        dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)


def _run_simulated(program: Program, world_size: int, rank: int, vocab_size: int | None) -> Measurement:
    from scaling.meter import StorageMeter

    meter = StorageMeter(rank=rank, world_size=world_size, vocab_size=vocab_size)
    with simulated_rank(world_size, rank=rank):
        meter.start()
        kept = program(meter)
        meter.stop()
        del kept
    return meter.measurement()
