"""A process group of N ranks of which only this one exists."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from scaling.trace.errors import TraceError


@contextmanager
def rank_0_of(world_size: int) -> Iterator[None]:
    """Make this process rank 0 of ``world_size`` inside the context, over torch's group that talks to nobody."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if world_size < 1:
        raise TraceError(f"world_size={world_size} must be above zero; give the number of GPUs")
    if dist.is_initialized():
        raise TraceError(
            "tracing a sharded step makes a process group, and this process already has one; trace in another process"
        )
    show_exception = sys.excepthook  # torch puts the rank before every line from now on
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    world = dist.group.WORLD
    assert world is not None
    backend = world._get_backend(torch.device("cpu"))
    world._register_backend(torch.device("meta"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = show_exception
