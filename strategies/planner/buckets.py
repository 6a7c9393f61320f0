"""Buckets below their usual size, for a plan that misses by less than they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from strategies.plan import Buckets, StrategyName
from strategies.zero import MIN_BUCKET_ELEMENTS

WITH_BUCKETS = (StrategyName.ZERO1, StrategyName.ZERO2, StrategyName.ZERO3)
"""DDP's buckets are its gradients, and FSDP2 has none."""


def smaller_buckets(buckets: Buckets) -> Iterator[Buckets]:
    """Yield buckets of half the size, a quarter, ..., down to those that are never too small to fill a link."""
    size = buckets.reduce_bucket_size // 2
    while size >= MIN_BUCKET_ELEMENTS:
        prefetch = min(size, buckets.stage3_prefetch_bucket_size)
        yield replace(
            buckets, reduce_bucket_size=size, allgather_bucket_size=size, stage3_prefetch_bucket_size=prefetch
        )
        size //= 2
