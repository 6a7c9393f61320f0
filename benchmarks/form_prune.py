"""Keep the few moments that are the highest at some realistic size."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.form_fit import FEATURES
from strategies.load_model import load_model_spec, preset_names
from strategies.memory.features import sizes_of, with_derived_sizes

TOLERANCE = 0.0005
"""By how much, of what lives then with two blocks, a moment may be above all that are kept."""
_LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 32768, 131072)
_BATCHES = (1, 4, 64)


def feature_values(family: str, *, seed: int = 0, ranks: Sequence[int] = (0,)) -> Any:
    """Return (feature, sample): the features at the family's presets and at random sizes, for many batches.

    ``ranks``: of adapters, in turn.
    """
    samples = [{**sizes, "R": rank} for sizes, rank in zip(_samples(family, random.Random(seed)), cycle(ranks))]
    return np.array([[_product(name, sizes) for sizes in samples] for name in FEATURES], dtype=float)


def pruned(levels: Any, *, values: Any, base: Any) -> list[int]:
    """Return the indices of the moments to keep. ``base`` (feature) is what lives beside them."""
    if not len(levels):
        return []
    parts = levels[:, :3].sum(axis=1)
    floor = base @ values
    chosen: list[int] = []
    for totals in (parts @ values, (parts + levels[:, 3]) @ values):
        _choose(totals, floor, chosen)
    return sorted(chosen)


def _choose(totals: Any, floor: Any, chosen: list[int]) -> None:
    best = totals.max(axis=0)
    allowed = best - TOLERANCE * np.abs(best + floor)
    while True:
        reached = totals[chosen].max(axis=0) if chosen else np.full_like(best, -np.inf)
        open_samples = reached < allowed
        if not open_samples.any():
            return
        covered = (totals[:, open_samples] >= allowed[open_samples]).sum(axis=1)
        chosen.append(int(covered.argmax()))


def _samples(family: str, pick: random.Random) -> Iterator[Mapping[str, int]]:
    for name in preset_names():
        spec = load_model_spec(name)
        if spec.family == family:
            for batch in _BATCHES:
                yield from (sizes_of(spec, micro_batch_size=batch, seq_len=length) for length in _LENGTHS)
    for _ in range(300):
        yield _random_sizes(family, pick)


def _random_sizes(family: str, pick: random.Random) -> Mapping[str, int]:
    heads, head_dim = pick.choice((8, 12, 16, 32, 64)), pick.choice((64, 80, 128, 256))
    groups = max(1, heads // pick.choice((1, 4, 8)))
    hidden = heads * pick.choice((64, 128))
    experts = pick.choice((8, 64, 128)) if family in ("mixtral", "qwen2_moe", "qwen3_moe") else 0
    return with_derived_sizes(
        {
            **{"B": pick.choice(_BATCHES), "S": pick.choice(_LENGTHS), "h": hidden, "n": heads, "c": groups},
            **{"q": heads * head_dim, "k": groups * head_dim, "d": head_dim, "r": head_dim},
            **{"f": round(hidden * pick.choice((2.7, 3.5, 4, 8))), "V": pick.choice((2048, 32000, 128256, 256000))},
            **{"E": experts, "e": pick.choice((2, 4, 8)) if experts else 0, "x": pick.choice((768, 1408, 14336))},
            **{"s": 5632 if experts else 0, "P": 2048},
        }
    )


def _product(name: str, sizes: Mapping[str, int]) -> int:
    product = 1
    for letter in name.split("*"):
        product *= 1 if letter == "1" else sizes[letter]
    return product


def as_form(vector: Sequence[float]) -> dict[str, float]:
    """Return the coefficients of one row by feature, whole numbers as such."""
    found = {name: float(value) for name, value in zip(FEATURES, vector, strict=True) if value}
    return {name: int(value) if value.is_integer() else value for name, value in found.items()}
