"""Collectives that are over when they return hold nothing of their own any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from scaling.collectives import completed_collectives
from scaling.storage_log import StorageLog


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    from torch._C._distributed_c10d import FileStore

    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.distributed
@pytest.mark.usefixtures("one_rank")
def test_collectives_keep_their_results() -> None:
    with completed_collectives(settle_s=1):
        reduced, gathered, scattered = torch.arange(4.0), torch.empty(4), torch.empty(4)
        handle = dist.all_reduce(reduced, async_op=True)
        assert handle is not None
        assert handle.is_completed()
        dist.all_gather_into_tensor(gathered, reduced)
        dist.reduce_scatter_tensor(scattered, gathered)
        dist.broadcast(reduced, src=0)
        dist.barrier()
    for tensor in (reduced, gathered, scattered):
        assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.distributed
@pytest.mark.usefixtures("one_rank")
def test_tensor_of_a_collective_is_freed_by_the_program_and_not_later_by_another_thread() -> None:
    with completed_collectives(settle_s=1), StorageLog() as log:
        for _ in range(1000):
            tensor = torch.ones(1000)
            dist.all_reduce(tensor)
            del tensor
            assert log.live_bytes == 0
    assert log.num_late_frees == 0
