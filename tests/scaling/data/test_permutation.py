"""The keyed permutation against published numbers, an independent program and the laws of chance."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.data.permutation import permute, splitmix64

WRAP = 2**64


def whole(size: int, *, seed: int, epoch: int) -> list[int]:
    return permute(np.arange(size, dtype=np.uint64), size=size, seed=seed, epoch=epoch).tolist()


class SplitMix64:
    """https://prng.di.unimi.it/splitmix64.c, line by line."""

    def __init__(self, state: int) -> None:
        self.state = state

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % WRAP
        return mix(self.state)


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WRAP
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WRAP
    return z ^ (z >> 31)


def permute_one_by_one(size: int, *, seed: int, epoch: int) -> list[int]:
    """The permutation as its docstrings define it, in plain integers and drawing in sequence."""
    epochs = SplitMix64(SplitMix64(seed).next())
    for _ in range(epoch):
        epochs.next()
    draws = SplitMix64(epochs.next())
    keys = [draws.next() for _ in range(12)]
    swap = draws.next() & 1
    half = next(bits for bits in range(1, 33) if 4**bits >= size)
    ids = []
    for value in range(size):
        while True:
            left, right = value >> half, value & (2**half - 1)
            for key in keys:
                left, right = right, left ^ (mix(right ^ key) & (2**half - 1))
            value = (left << half) | right
            if value < size:
                break
        ids.append(value ^ swap if value < 2 and size > 1 else value)
    return ids


def test_splitmix64_matches_published_outputs() -> None:
    # Rosetta Code, "Pseudo-random numbers/Splitmix64", seed 1234567.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(1234567, 5).tolist() == published


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 100, 1000])
def test_permute_matches_program_in_plain_integers(size: int) -> None:
    for seed, epoch in [(0, 0), (42, 0), (42, 3), (WRAP - 1, 7)]:
        assert whole(size, seed=seed, epoch=epoch) == permute_one_by_one(size, seed=seed, epoch=epoch)


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 3000), seed=st.integers(0, WRAP - 1), epoch=st.integers(0, 1000))
def test_permute_takes_every_value_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(whole(size, seed=seed, epoch=epoch)) == list(range(size))


@pytest.mark.parametrize(
    ("size", "critical_value"),
    [(3, 20.515), (4, 49.728), (5, 172.5)],
)
def test_permute_makes_all_orders_equally_often(size: int, critical_value: float) -> None:
    # Chi-square, 0.1 % level, with 5, 23 and 119 degrees of freedom (NIST/SEMATECH e-Handbook, table 1.3.6.7.4;
    # 119 by the Wilson-Hilferty approximation).
    counts = Counter(tuple(whole(size, seed=1, epoch=epoch)) for epoch in range(2000))
    orders = list(permutations(range(size)))
    expected = 2000 / len(orders)
    assert sum((counts[order] - expected) ** 2 / expected for order in orders) < critical_value


@pytest.mark.parametrize("size", [4, 16, 64])
def test_permute_makes_odd_permutations_as_often_as_even_ones(size: int) -> None:
    def is_odd(order: list[int]) -> bool:
        return sum(a > b for index, a in enumerate(order) for b in order[index + 1 :]) % 2 == 1

    num_odd = sum(is_odd(whole(size, seed=1, epoch=epoch)) for epoch in range(400))
    assert abs(num_odd - 200) < 40  # four standard deviations of 400 fair coins


def test_permute_reaches_a_billion_samples_without_memory() -> None:
    ids = permute(np.array([0, 999_999_999], dtype=np.uint64), size=10**9, seed=0, epoch=0).tolist()
    assert len(set(ids)) == 2
    assert max(ids) < 10**9
