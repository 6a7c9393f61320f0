"""Plans, rejections and times in words."""

from dataclasses import replace

import pytest

from strategies.decision import Rejection, Resource
from strategies.estimate import CauseBytes, Phase, PhaseBytes
from strategies.explain import (
    closeness,
    describe_plan,
    describe_rejection,
    describe_trained,
    largest_seconds,
    needs,
    nothing_fits,
)
from strategies.job import LossImplementation
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.time.step_time import StepTime
from strategies.trained import Lora
from strategies.units import GIB, format_seconds
from tests.strategies.builders import small_cluster, small_job, tiny_spec

PLAN = Plan(
    strategy=StrategyName.FSDP2,
    micro_batch_size=2,
    gradient_accumulation_steps=3,
    activation_checkpointing=ActivationCheckpointing.FULL,
    checkpoint_every=2,
    reshard_after_forward=False,
    offload_optimizer=OffloadDevice.CPU,
    buckets=STRATEGIES[StrategyName.FSDP2].buckets(tiny_spec(), small_job()),
)
REJECTION = Rejection(
    plan=PLAN,
    loss=LossImplementation.FUSED,
    needed_bytes=10 * GIB,
    over_by_bytes=2 * GIB,
    peak=PhaseBytes(
        phase=Phase.BACKWARD, causes=CauseBytes(parameters=GIB, gradients=2 * GIB, optimizer_states=4 * GIB)
    ),
)


def test_a_plan_is_one_phrase_with_everything_that_is_not_usual() -> None:
    assert describe_plan(PLAN, LossImplementation.FUSED) == (
        "fsdp2, weights kept after forward, optimizer on cpu, activation checkpointing full of one block in 2, "
        "fused loss, micro batch 2 x accumulation 3"
    )


def test_a_rejection_tells_what_is_needed_by_how_much_and_its_largest_causes() -> None:
    causes = "2.00 GiB over (in backward: optimizer states 4.00 GiB, gradients 2.00 GiB)"
    assert describe_rejection(REJECTION, safety=0.9).endswith(f"needs 10.00 GiB at safety 0.9, {causes}")
    assert describe_rejection(REJECTION, safety=0.0).endswith(f"needs 10.00 GiB, {causes}")
    floor = describe_rejection(replace(REJECTION, is_lower_bound=True), safety=0.9)
    assert "needs at least 10.00 GiB at safety 0.9, 2.00 GiB over" in floor
    on_host = describe_rejection(replace(REJECTION, resource=Resource.HOST_MEMORY), safety=0.9)
    assert on_host.endswith("needs 10.00 GiB of host memory a node, 2.00 GiB over"), "host memory has no margin"


def test_what_is_needed_is_the_point_estimate_and_says_what_is_not() -> None:
    assert needs(4 * GIB, 5 * GIB, safety=0.9) == "needs 4.00 GiB, 5.00 GiB at safety 0.9"
    assert needs(4 * GIB, 4 * GIB, safety=0.0) == "needs 4.00 GiB"


def test_what_is_trained_is_named_where_it_is_not_everything() -> None:
    job = small_job()
    assert describe_trained(job) == ""
    adapters = replace(job, lora=Lora(rank=8, target_modules=("q_proj", "v_proj")))
    assert describe_trained(adapters) == "LoRA rank 8 on q_proj, v_proj"
    assert describe_trained(replace(job, freeze=("embed_tokens", "!lm_head"))) == "frozen embed_tokens, !lm_head"


def test_what_lacks_host_memory_only_is_closer_and_a_floor_is_further() -> None:
    on_host = replace(REJECTION, resource=Resource.HOST_MEMORY, over_by_bytes=50 * GIB)
    floor = replace(REJECTION, is_lower_bound=True, over_by_bytes=1)
    assert sorted([floor, REJECTION, on_host], key=closeness) == [on_host, REJECTION, floor]
    cluster = replace(small_cluster(), host_memory_bytes=GIB)
    assert "1.00 GiB of host memory a node" in nothing_fits((REJECTION, on_host), cluster=cluster, safety=0.9)
    assert "no plan fits 8.00 GiB a GPU at safety 0.9" in nothing_fits((REJECTION,), cluster=cluster, safety=0.9)
    assert "at safety" not in nothing_fits((REJECTION,), cluster=cluster, safety=0.0)


def test_times_are_told_by_their_largest_causes() -> None:
    time = StepTime(
        matrix_s=1.0,
        attention_s=0.2,
        memory_bound_s=0.5,
        recompute_s=0.0,
        communication_s=0.7,
        optimizer_s=0.1,
        launch_s=0.0,
        tokens_per_gpu=10,
        model_flops_per_token=1.0,
        hardware_flops_per_token=1.0,
        peak_flops_per_s=1.0,
    )
    assert largest_seconds(time) == "matrix products 1 s, communication 0.7 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (2.5e-5, "25 us"),
        (0.95812, "0.9581 s"),
        (99.934, "99.93 s"),
        (119.99, "120 s"),
        (1_070.4, "17 min 50 s"),
        (3_599.8, "1 h 0 min"),
        (13_990.0, "3 h 53 min"),
        (10_000_000.0, "2,777 h 47 min"),
    ],
)
def test_a_time_is_read_without_counting_zeros(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
