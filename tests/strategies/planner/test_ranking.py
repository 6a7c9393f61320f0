"""Fastest first; what is within a tie goes to the simpler plan; buckets shrink only where that decides."""

from dataclasses import replace

import pytest

from strategies.cluster import Cluster, Gpu
from strategies.explain import describe_variant
from strategies.job import Job, LossImplementation
from strategies.learning.step_correction import known_step_time
from strategies.memory.predict import predict
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.planner.ranking import TIE
from strategies.planner.sweep import Fit, Sweep
from strategies.search import FixedParts, candidates
from strategies.select import decide
from strategies.time.step_time import step_time
from tests.strategies.builders import small_job, tiny_spec
from tests.strategies.planner.builders import question


def test_a_tie_goes_to_the_simpler_plan() -> None:
    """On one GPU nothing is communicated: every strategy is as fast, and DDP is the simplest."""
    asked = question("llama-3.2-1b", gpus=1, global_batch_size=4)
    decision = decide(asked.spec, cluster=asked.cluster, job=asked.job, fixed=asked.fixed)
    assert decision.plan.strategy is StrategyName.DDP
    assert decision.plan.offload_optimizer is OffloadDevice.NONE


def test_the_fastest_plan_is_taken_though_a_simpler_one_fits() -> None:
    asked = question(seq_len=4096)
    decision = decide(asked.spec, cluster=asked.cluster, job=asked.job, fixed=asked.fixed)
    assert decision.time is not None
    full = FixedParts(activation_checkpointing=ActivationCheckpointing.FULL)
    simpler = decide(asked.spec, cluster=asked.cluster, job=asked.job, fixed=full)
    assert simpler.time is not None
    assert decision.time.total_s < 0.9 * simpler.time.total_s  # a third of the forward is not computed again


@pytest.mark.parametrize(
    ("model", "gpu", "gpus"), [("llama-3-70b", "H100-80GB-SXM", 64), ("llama-3-8b", "A100-80GB-SXM", 8)]
)
def test_a_loss_that_is_faster_and_smaller_takes_a_tie_from_the_framework_s_own(
    model: str, gpu: str, gpus: int
) -> None:
    asked = question(model, gpu, gpus=gpus, global_batch_size=8 * gpus)
    decision = decide(asked.spec, cluster=asked.cluster, job=asked.job, fixed=asked.fixed)
    assert decision.job.loss is LossImplementation.FUSED
    own = decision.alternatives[0]
    assert describe_variant(own.plan) == describe_variant(decision.plan)
    assert own.loss is LossImplementation.STANDARD
    assert decision.time is not None
    assert own.time is not None
    assert decision.time.total_s <= own.time.total_s < decision.time.total_s * (1 + TIE)
    assert decision.estimate.device_bytes < own.device_bytes
    # Nothing is searched where a loss is named.
    named = decide(asked.spec, cluster=asked.cluster, job=asked.job, fixed=FixedParts())
    assert named.job.loss is LossImplementation.STANDARD


def test_times_of_a_decision_are_those_of_the_time_model() -> None:
    asked = question()
    decision = decide(asked.spec, cluster=asked.cluster, job=asked.job, fixed=asked.fixed)
    for ranked in (*decision.by_strategy, *decision.alternatives, *decision.front):
        job = replace(asked.job, loss=ranked.loss)
        assert ranked.time == step_time(asked.spec, cluster=asked.cluster, job=job, plan=ranked.plan)
        estimate = predict(asked.spec, cluster=asked.cluster, job=job, plan=ranked.plan)
        assert ranked.device_bytes == estimate.device_bytes
        assert ranked.peak == estimate.memory.peak
    assert [ranked.plan.strategy for ranked in decision.by_strategy] == ["zero1", "zero2", "zero3", "fsdp2"]


def test_where_no_time_is_known_the_simplest_plan_that_fits_is_taken() -> None:
    unknown = Cluster(gpu=Gpu(name="unknown", memory_bytes=8 * 2**30), gpus=4, gpus_per_node=4)
    decision = decide(tiny_spec(), cluster=unknown, job=small_job())
    assert decision.time is None
    assert (decision.plan.strategy, decision.plan.activation_checkpointing) == ("ddp", "none")
    assert known_step_time(tiny_spec(), cluster=unknown, job=small_job(), plan=decision.plan) is None


def test_buckets_shrink_only_where_that_makes_a_plan_fit() -> None:
    asked = question(
        "llama-3.2-1b",
        fixed=FixedParts(
            strategy=StrategyName.ZERO3,  # whose bucket is there all the time
            micro_batch_size=1,
            activation_checkpointing=ActivationCheckpointing.FULL,
            offload_optimizer=OffloadDevice.NONE,
            offload_param=OffloadDevice.NONE,
        ),
        safety=0.0,
    )
    plan = next(candidates(asked.spec, cluster=asked.cluster, job=asked.job, fixed=asked.fixed))
    estimate = predict(asked.spec, cluster=asked.cluster, job=asked.job, plan=plan)
    sized = plan.buckets.reduce_bucket_size
    for missing_bytes, expected in ((0, sized), (2**20, sized // 2)):
        gpu = replace(asked.cluster.gpu, memory_bytes=estimate.device_bytes - missing_bytes)
        sweep = Sweep(asked.on(cluster=replace(asked.cluster, gpu=gpu)))
        (outcome,) = sweep.outcomes()
        assert isinstance(outcome, Fit)
        assert outcome.plan.buckets.reduce_bucket_size == expected


def test_a_job_of_more_samples_keeps_its_global_batch() -> None:
    job = Job(seq_len=128, global_batch_size=24)
    asked = question("gpt2-xl", gpus=4)
    decision = decide(asked.spec, cluster=asked.cluster, job=job, fixed=asked.fixed)
    for ranked in (*decision.by_strategy, *decision.alternatives, *decision.front):
        assert ranked.plan.micro_batch_size * ranked.plan.gradient_accumulation_steps * 4 == 24
