"""Sample order: loop_bugs 14, 16, 18 and 19, and what holds for every size."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.data.errors import DataError
from scaling.data.order import SampleOrder, evaluation_micro_batches

WORLD_SIZES = (1, 2, 4)


def trained_ids(order: SampleOrder, steps: range, *, world_size: int, micro_batch_size: int) -> list[list[int]]:
    """The ids of each optimizer step, put together from what every rank takes."""
    return [
        sorted(
            int(sample)
            for rank in range(world_size)
            for ids in order.rank_micro_batches(
                step, rank=rank, world_size=world_size, micro_batch_size=micro_batch_size
            )
            for sample in ids
        )
        for step in steps
    ]


def flat(steps: list[list[int]]) -> list[int]:
    return [sample for step in steps for sample in step]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_order_drops_no_sample_when_an_epoch_is_no_whole_number_of_windows(world_size: int) -> None:
    # 10 micro batches of 2 an epoch, 4 of them a step: 2.5 steps. Two epochs are 5 full steps.
    order = SampleOrder(num_samples=20, global_batch_size=8, seed=0)
    assert order.num_steps(1) == 3
    assert order.num_steps(2) == 5
    ids = flat([order.global_batch(step).tolist() for step in range(5)])
    assert sorted(ids[:20]) == list(range(20))
    assert sorted(ids[20:]) == list(range(20))
    steps = trained_ids(order, range(5), world_size=world_size, micro_batch_size=2)
    assert sorted(flat(steps)) == sorted([*range(20), *range(20)])
    assert [len(step) for step in steps] == [8] * 5


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("resumed_world_size", WORLD_SIZES)
def test_order_resumes_without_repeating_or_skipping(world_size: int, resumed_world_size: int) -> None:
    # 40 samples, batch 2, accumulation 4 on one rank: 5 steps an epoch, stopped after 3.
    order = SampleOrder(num_samples=40, global_batch_size=8, seed=3)
    before = trained_ids(order, range(3), world_size=world_size, micro_batch_size=2)
    resumed = SampleOrder(num_samples=40, global_batch_size=8, seed=3)
    after = trained_ids(resumed, range(3, 5), world_size=resumed_world_size, micro_batch_size=2)
    assert len(flat(before)) == 24
    assert sorted(flat(before) + flat(after)) == list(range(40))


def test_order_resumes_without_repeating_when_the_global_batch_changes() -> None:
    before = SampleOrder(num_samples=40, global_batch_size=8, seed=3).ids(0, 24)
    after = SampleOrder(num_samples=40, global_batch_size=4, seed=3).ids(24, 16)
    assert sorted([*before.tolist(), *after.tolist()]) == list(range(40))


def test_order_in_a_later_epoch_is_that_of_an_uninterrupted_run() -> None:
    whole_run = SampleOrder(num_samples=12, global_batch_size=4, seed=42).ids(0, 36).tolist()
    assert all(sorted(whole_run[start : start + 12]) == list(range(12)) for start in (0, 12, 24))
    resumed = SampleOrder(num_samples=12, global_batch_size=4, seed=42)  # stopped in the middle of epoch 2
    assert flat([resumed.global_batch(step).tolist() for step in range(4, 9)]) == whole_run[16:]


def test_order_differs_between_epochs_and_seeds_and_not_between_runs() -> None:
    order = SampleOrder(num_samples=8, global_batch_size=4, seed=42)
    rank_ids = [
        [
            flat([ids.tolist() for ids in order.rank_micro_batches(step, rank=rank, world_size=2, micro_batch_size=2)])
            for step in range(6)
        ]
        for rank in range(2)
    ]
    epochs = [[flat(ids[start : start + 2]) for ids in rank_ids] for start in (0, 2, 4)]
    assert all(sorted(flat(ranks)) == list(range(8)) for ranks in epochs)
    assert epochs[0] != epochs[1]
    assert epochs[1] != epochs[2]
    assert epochs[0] != epochs[2]
    again = SampleOrder(num_samples=8, global_batch_size=4, seed=42)
    assert again.ids(0, 24).tolist() == order.ids(0, 24).tolist()
    other = SampleOrder(num_samples=8, global_batch_size=4, seed=43)
    assert other.ids(0, 24).tolist() != order.ids(0, 24).tolist()


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_order_union_over_ranks_is_the_global_batch_for_every_world_size(data: st.DataObject) -> None:
    micro_batch_size = data.draw(st.integers(1, 4))
    global_batch_size = 4 * micro_batch_size * data.draw(st.integers(1, 3))
    order = SampleOrder(
        num_samples=data.draw(st.integers(global_batch_size, 500)),
        global_batch_size=global_batch_size,
        seed=data.draw(st.integers(0, 2**64 - 1)),
    )
    step = data.draw(st.integers(0, 10**6))
    expected = sorted(order.global_batch(step).tolist())
    for world_size in WORLD_SIZES:
        [union] = trained_ids(order, range(step, step + 1), world_size=world_size, micro_batch_size=micro_batch_size)
        assert union == expected
        rank_batches = order.rank_micro_batches(
            step, rank=world_size - 1, world_size=world_size, micro_batch_size=micro_batch_size
        )
        assert len(rank_batches) == global_batch_size // (micro_batch_size * world_size)
        assert {len(ids) for ids in rank_batches} == {micro_batch_size}


@settings(deadline=None, max_examples=100)
@given(
    num_samples=st.integers(1, 300),
    cuts=st.lists(st.integers(0, 900), max_size=6),
    seed=st.integers(0, 2**64 - 1),
)
def test_order_takes_every_sample_once_an_epoch_however_it_is_cut(num_samples: int, cuts: list[int], seed: int) -> None:
    order = SampleOrder(num_samples=num_samples, global_batch_size=1, seed=seed)
    total = 3 * num_samples
    edges = [0, *sorted(cut % (total + 1) for cut in cuts), total]
    ids = flat([order.ids(start, end - start).tolist() for start, end in pairwise(edges)])
    for epoch in range(3):
        assert sorted(ids[epoch * num_samples : (epoch + 1) * num_samples]) == list(range(num_samples))


def test_order_reaches_a_far_step_as_fast_as_the_first() -> None:
    order = SampleOrder(num_samples=10**8, global_batch_size=1024, seed=0)
    started = time.perf_counter()
    order.global_batch(10**9)  # epoch 10240: replaying or storing permutations would take minutes
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(("epochs", "steps"), [(0.0, 0), (0.5, 2), (1.0, 3), (1.1, 3), (4, 10)])
def test_num_steps_covers_the_epochs(epochs: float, steps: int) -> None:
    order = SampleOrder(num_samples=10, global_batch_size=4, seed=0)
    assert order.num_steps(epochs) == steps
    assert order.epoch(5) == 2.0


def test_num_steps_is_not_misled_by_binary_fractions() -> None:
    assert SampleOrder(num_samples=10, global_batch_size=1, seed=0).num_steps(1.1) == 11


@settings(deadline=None, max_examples=100)
@given(num_samples=st.integers(0, 60), world_size=st.sampled_from(WORLD_SIZES), micro_batch_size=st.integers(1, 5))
def test_evaluation_takes_every_sample_once_in_equally_many_passes(
    num_samples: int, world_size: int, micro_batch_size: int
) -> None:
    ranks = [
        evaluation_micro_batches(num_samples, rank=rank, world_size=world_size, micro_batch_size=micro_batch_size)
        for rank in range(world_size)
    ]
    assert sorted(int(sample) for batches in ranks for ids in batches for sample in ids) == list(range(num_samples))
    assert len({len(batches) for batches in ranks}) == 1
    assert all(len(ids) <= micro_batch_size and ids.dtype == np.int64 for batches in ranks for ids in batches)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_samples": 10, "global_batch_size": 64}, r"global_batch_size=64 .*num_samples=10 .*at most .*=10"),
        ({"num_samples": 0}, r"num_samples=0 .*above zero"),
        ({"global_batch_size": 0}, r"global_batch_size=0 .*above zero"),
        ({"seed": -1}, r"seed=-1 .*at least 0"),
    ],
)
def test_order_refuses_impossible_values(values: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        SampleOrder(**{"num_samples": 100, "global_batch_size": 8, "seed": 0, **values})


@pytest.mark.parametrize(("rank", "world_size", "micro_batch_size"), [(0, 3, 1), (0, 1, 3), (2, 2, 1), (0, 1, 16)])
def test_rank_micro_batches_refuses_sizes_that_do_not_divide(rank: int, world_size: int, micro_batch_size: int) -> None:
    order = SampleOrder(num_samples=100, global_batch_size=8, seed=0)
    with pytest.raises(DataError, match=f"micro_batch_size={micro_batch_size} .*world_size={world_size}"):
        order.rank_micro_batches(0, rank=rank, world_size=world_size, micro_batch_size=micro_batch_size)
