"""Batches made ahead by other processes, and samples out of a stream."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from scaling.batch import Batch, causal_batch
from scaling.data.errors import DataError
from scaling.data.feed import MicroBatchFeed
from scaling.data.order import Draw, SampleOrder, StreamOrder
from scaling.data.stream import Stream

SIZE, GLOBAL = 2, 8


class Numbers:
    """Each sample is its id and its position."""

    def __len__(self) -> int:
        return 21

    def batch(self, draw: Draw) -> Batch:
        return causal_batch(torch.from_numpy(np.stack([draw.ids, draw.positions], axis=1)))


def feed(num_workers: int) -> MicroBatchFeed:
    order = SampleOrder(num_samples=21, global_batch_size=GLOBAL, seed=5)
    return MicroBatchFeed(Numbers(), order, micro_batch_size=SIZE, num_workers=num_workers, pins=False)


def taken(source: MicroBatchFeed, steps: list[int], *, rank: int, world_size: int) -> list[list[list[int]]]:
    return [
        [
            row
            for batch in source.take(step, rank=rank, world_size=world_size)
            for row in batch.inputs["input_ids"].tolist()
        ]
        for step in steps
    ]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_workers_change_nothing_about_the_batches(world_size: int) -> None:
    steps = [0, 1, 2, 5, 6, 2]  # a resumed run begins somewhere, and a step may come again
    for rank in range(world_size):
        alone = taken(feed(0), steps, rank=rank, world_size=world_size)
        ahead = feed(2)
        assert taken(ahead, steps, rank=rank, world_size=world_size) == alone
        ahead.close()


def test_workers_leave_the_random_numbers_of_dropout_alone() -> None:
    # A run that goes on from a checkpoint starts its workers once more than one that was not interrupted.
    before = torch.get_rng_state()
    ahead = feed(1)
    taken(ahead, [3], rank=0, world_size=1)
    ahead.close()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_every_global_batch_out(world_size: int) -> None:
    order = SampleOrder(num_samples=21, global_batch_size=GLOBAL, seed=5)
    for step in range(6):
        rows = [
            row for rank in range(world_size) for row in taken(feed(0), [step], rank=rank, world_size=world_size)[0]
        ]
        rows.sort(key=lambda row: row[1])
        assert [position for _, position in rows] == list(range(step * GLOBAL, (step + 1) * GLOBAL))
        assert [sample for sample, _ in rows] == order.global_batch(step).tolist()


def test_pinning_a_batch_pins_every_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[tuple[int, ...]] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:  # without a GPU there is nothing to pin for
        pinned.append(tuple(tensor.shape))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    causal_batch(torch.zeros(2, 3, dtype=torch.long), attention_mask=torch.ones(2, 3)).pin_memory()
    assert pinned == [(2, 3)] * 3


def test_a_stream_is_shared_out_over_ranks_and_begins_again_where_it_ends() -> None:
    # 10 items, 8 a step: the second step takes the last two and, of the next pass, the first six.
    order = StreamOrder(global_batch_size=GLOBAL)
    found: dict[int, int] = {}
    for rank in range(2):
        stream = Stream(lambda: range(10), seed=None)
        for step in range(5):
            for draw in order.rank_draws(step, rank=rank, world_size=2, micro_batch_size=SIZE):
                found |= {int(position): stream.at(int(position)) for position in draw.positions}
    assert [found[position] for position in range(40)] == [position % 10 for position in range(40)]


def test_a_shuffled_stream_takes_every_item_once_a_pass_in_orders_that_differ() -> None:
    stream = Stream(lambda: range(3000), seed=4)
    first, second = ([stream.at(start + index) for index in range(3000)] for start in (0, 3000))
    assert sorted(first) == sorted(second) == list(range(3000))
    assert first != second
    assert first != list(range(3000))
    resumed = Stream(lambda: range(3000), seed=4)
    assert [resumed.at(3500 + index) for index in range(10)] == second[500:510]
    assert resumed.at(17) == first[17]  # an earlier one


def test_held_out_items_of_a_stream_are_not_trained_on() -> None:
    train, held_out = Stream(lambda: range(10), seed=1, skips=4), Stream(lambda: range(10), seed=None, takes=4)
    assert [held_out.at(index) for index in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert {train.at(index) for index in range(60)} == {4, 5, 6, 7, 8, 9}


def test_an_empty_stream_is_refused_and_does_not_hang() -> None:
    def nothing() -> Iterator[int]:
        yield from ()

    with pytest.raises(DataError, match="the stream has no sample after the first 3"):
        Stream(nothing, seed=0, skips=3).at(0)
