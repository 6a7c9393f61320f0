from __future__ import annotations

import pytest

from strategies.plan import Buckets, Plan, StrategyName
from strategies.time.traffic import traffic

BUCKETS = Buckets(
    reduce_bucket_size=25_000_000,
    allgather_bucket_size=25_000_000,
    stage3_prefetch_bucket_size=1,
    stage3_param_persistence_threshold=1,
    stage3_max_live_parameters=1,
    overlap_comm=True,
)


def plan_of(strategy: StrategyName, *, steps: int = 1, reshard: bool = True, sync: bool = True) -> Plan:
    return Plan(
        strategy=strategy,
        micro_batch_size=1,
        gradient_accumulation_steps=steps,
        reshard_after_forward=reshard,
        sync_each_batch=sync,
        buckets=BUCKETS,
    )


# Rajbhandari et al. 2020, arXiv:1910.02054, section 7: 2 P for plain data parallelism and stages 1 and 2, 3 P for 3.
@pytest.mark.parametrize(
    ("strategy", "multiple"),
    [
        (StrategyName.DDP, 2),
        (StrategyName.ZERO1, 2),
        (StrategyName.ZERO2, 2),
        (StrategyName.ZERO3, 3),
        (StrategyName.FSDP2, 3),
    ],
)
def test_traffic_matches_zero_section_7(strategy: StrategyName, multiple: int) -> None:
    assert traffic(plan_of(strategy)).total == multiple


def test_traffic_of_fsdp2_that_keeps_its_weights_has_one_gather_less() -> None:
    assert traffic(plan_of(StrategyName.FSDP2, reshard=False)).total == 2


@pytest.mark.parametrize(
    ("strategy", "multiple"),
    # Stage 1 and DDP reduce once per step, stage 2 per micro batch, stage 3 does everything per micro batch.
    [(StrategyName.DDP, 2), (StrategyName.ZERO1, 2), (StrategyName.ZERO2, 5), (StrategyName.ZERO3, 12)],
)
def test_traffic_under_accumulation(strategy: StrategyName, multiple: int) -> None:
    assert traffic(plan_of(strategy, steps=4)).total == multiple


def test_traffic_of_fsdp2_that_reduces_once_a_step() -> None:
    # torch 2.13, FSDPModule.set_requires_gradient_sync: micro batches without it gather twice and reduce nothing.
    assert traffic(plan_of(StrategyName.FSDP2, steps=4)).total == 12
    assert traffic(plan_of(StrategyName.FSDP2, steps=4, sync=False)).total == 9
