"""Keyed permutations of a range, computed for single positions.

64-bit integer arithmetic alone: the result depends neither on numpy's version nor on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_ROUNDS = 12
"""Feistel rounds. Luby and Rackoff 1988 prove four enough for large halves; small data has halves of a few bits."""

# SplitMix64: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", with the constants of
# https://prng.di.unimi.it/splitmix64.c (Vigna 2015).
GAMMA = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def permute(positions: NDArray[np.uint64], *, size: int, seed: int, epoch: int) -> NDArray[np.uint64]:
    """Return where each position lands in the permutation of ``range(size)`` that ``seed`` and ``epoch`` choose.

    A Feistel network permutes the smallest square power of two that holds ``size`` (at most ``4 * size``); values that
    leave the range go through it again until they return, which keeps it a permutation.
    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 3, cycle walking.

    Such a network makes even permutations only, which would show in small ranges (5 values: each order up to 8 % too
    frequent or too rare). One more key bit therefore says whether 0 and 1 change places.
    """
    half_bits = max(1, -(-(size - 1).bit_length() // 2))
    *keys, swap = splitmix64(_epoch_state(seed, epoch), NUM_ROUNDS + 1)
    values = _feistel(positions, keys, half_bits)
    while (outside := np.flatnonzero(values >= size)).size:
        values[outside] = _feistel(values[outside], keys, half_bits)
    if size > 1:
        values[values < 2] ^= swap & np.uint64(1)
    return values


def _feistel(values: NDArray[np.uint64], keys: Sequence[np.uint64], half_bits: int) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _epoch_state(seed: int, epoch: int) -> int:
    """Return the state that the keys of one epoch are drawn from: output ``epoch`` of a generator that ``seed`` seeds.

    The seed goes through a generator once before, so that the epochs of neighbouring seeds have nothing in common.
    """
    return _output(_output(seed, 0), epoch)


def _output(state: int, index: int) -> int:
    """Return output ``index`` of SplitMix64 started at ``state``: it can be reached without those before."""
    return int(splitmix64(state + index * GAMMA, 1)[0])


def splitmix64(state: int, count: int) -> NDArray[np.uint64]:
    """Return the first ``count`` outputs of SplitMix64 started at ``state``."""
    states = [(state + index * GAMMA) % (1 << 64) for index in range(1, count + 1)]
    return _mix(np.array(states, dtype=np.uint64))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's output function of each value; array arithmetic wraps at 2**64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return values ^ (values >> np.uint64(31))
