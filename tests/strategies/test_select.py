"""Choosing: order of preference, rejections with numbers, refusals."""

from dataclasses import replace

import pytest

from strategies.cluster import Cluster, gpu_preset
from strategies.errors import JobError, NoPlanFitsError, PlanError
from strategies.estimate import Estimate
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.memory.predict import predict
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName, accumulation_steps
from strategies.search import FixedParts, candidates
from strategies.select import decide
from tests.strategies.builders import small_cluster, small_job, tiny_spec

CPU = "cpu"


def test_decide_takes_plain_ddp_when_everything_fits() -> None:
    decision = decide(tiny_spec(), cluster=small_cluster(), job=small_job())
    assert decision.plan.strategy is StrategyName.DDP
    assert decision.plan.activation_checkpointing is ActivationCheckpointing.NONE
    assert decision.plan.micro_batch_size == 4  # 16 samples over 4 GPUs in one pass
    assert decision.rejected == ()


def test_decide_rejects_each_kind_of_plan_with_the_bytes_it_is_over() -> None:
    spec, job = tiny_spec(num_layers=64), small_job(global_batch_size=8, seq_len=16)
    generous = small_cluster(name=CPU)
    ddp_peak = _peak(StrategyName.DDP, spec, generous, job)
    zero2_peak = _peak(StrategyName.ZERO2, spec, generous, job)
    assert zero2_peak < ddp_peak
    cluster = small_cluster(name=CPU, memory_bytes=zero2_peak)
    decision = decide(spec, cluster=cluster, job=job, safety=0)
    assert decision.estimate.device_bytes <= zero2_peak
    assert decision.rejected[0].plan.strategy is StrategyName.DDP
    for rejection in decision.rejected:
        exact = predict(spec, cluster=cluster, job=job, plan=rejection.plan).device_bytes
        assert rejection.over_by_bytes == rejection.needed_bytes - zero2_peak > 0
        assert rejection.needed_bytes == exact or (rejection.is_lower_bound and rejection.needed_bytes < exact)


def _peak(name: StrategyName, spec, cluster, job) -> int:
    fixed = FixedParts(strategy=name, activation_checkpointing=ActivationCheckpointing.FULL, micro_batch_size=1)
    plan = next(candidates(spec, cluster=cluster, job=job, fixed=fixed))
    return predict(spec, cluster=cluster, job=job, plan=plan).device_bytes


def test_decide_raises_with_the_closest_plan_when_nothing_fits() -> None:
    message = r"no plan fits 1\.00 KiB a GPU at safety 0\.9; the closest is .* over"
    with pytest.raises(NoPlanFitsError, match=message) as caught:
        decide(tiny_spec(), cluster=small_cluster(memory_bytes=1024), job=small_job())
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("precision", ["bf16", "bf16-autocast", "bf16-pure"])
def test_formats_that_the_gpu_lacks_are_refused_with_those_that_it_has(precision: str) -> None:
    cluster = Cluster(gpu=gpu_preset("V100-16GB-SXM2"), gpus=4, gpus_per_node=4)
    job = replace(small_job(), precision=Precision(precision))
    with pytest.raises(
        PlanError, match=f"precision={precision}, but V100-16GB-SXM2 has no bf16 .* --precision fp16 or fp32"
    ):
        decide(tiny_spec(), cluster=cluster, job=job)


def test_candidates_obey_every_fixed_part() -> None:
    fixed = FixedParts(
        strategy=StrategyName.ZERO2,
        activation_checkpointing=ActivationCheckpointing.FULL,
        micro_batch_size=2,
        offload_optimizer=OffloadDevice.CPU,
    )
    plans = list(candidates(tiny_spec(), cluster=small_cluster(), job=small_job(), fixed=fixed))
    assert [(p.strategy, p.activation_checkpointing, p.micro_batch_size) for p in plans] == [("zero2", "full", 2)]
    assert plans[0].offload_optimizer is OffloadDevice.CPU
    assert plans[0].gradient_accumulation_steps == 2


@pytest.mark.parametrize(
    ("global_batch_size", "gpus", "advice"),
    [(10, 4, "for instance 8 or 12"), (3, 4, "for instance 4"), (1, 2, "for instance 2")],
)
def test_candidates_refuse_a_batch_that_does_not_divide(global_batch_size: int, gpus: int, advice: str) -> None:
    job = small_job(global_batch_size=global_batch_size)
    with pytest.raises(PlanError, match=f"global_batch_size={global_batch_size} .* gpus={gpus}.*{advice}"):
        list(candidates(tiny_spec(), cluster=small_cluster(gpus=gpus), job=job, fixed=FixedParts()))


@pytest.mark.parametrize("micro_batch_size", [0, -1, 3, 5])
def test_candidates_refuse_a_fixed_micro_batch_that_cannot_be(micro_batch_size: int) -> None:
    fixed = FixedParts(micro_batch_size=micro_batch_size)
    with pytest.raises(PlanError, match=f"micro_batch_size={micro_batch_size}"):
        list(candidates(tiny_spec(), cluster=small_cluster(), job=small_job(), fixed=fixed))


def test_every_candidate_gives_exactly_the_global_batch() -> None:
    cluster, job = small_cluster(gpus=3), small_job(global_batch_size=36)
    plans = list(candidates(tiny_spec(), cluster=cluster, job=job, fixed=FixedParts()))
    assert {plan.micro_batch_size for plan in plans} == {1, 2, 3, 4, 6, 12}
    assert all(plan.micro_batch_size * plan.gradient_accumulation_steps * 3 == 36 for plan in plans)


def test_accumulation_steps_names_the_nearest_batch_below() -> None:
    with pytest.raises(PlanError, match=r"= 8; try global_batch_size=8"):
        accumulation_steps(global_batch_size=15, micro_batch_size=2, data_parallel_size=4)


def test_predict_refuses_a_sequence_beyond_the_positions() -> None:
    job = replace(small_job(), seq_len=1025)
    with pytest.raises(JobError, match="seq_len=1025 is longer than the 1024 positions"):
        decide(tiny_spec(), cluster=small_cluster(), job=job)


def test_predict_phase_totals_are_sums_and_the_peak_is_their_maximum() -> None:
    decision = decide(tiny_spec(), cluster=small_cluster(), job=small_job())
    memory = decision.estimate.memory
    assert memory.peak_bytes == max(sum(value for _, value in phase.causes.items()) for phase in memory.phases)
    assert decision.estimate.peak_allocated_bytes == memory.peak_bytes


def test_another_estimate_is_asked_in_order_until_one_fits_and_no_further() -> None:
    spec, cluster, job = tiny_spec(), small_cluster(), small_job()
    asked: list[Plan] = []

    def doubling_large_batches(plan: Plan) -> Estimate:
        asked.append(plan)
        found = predict(spec, cluster=cluster, job=job, plan=plan)
        return replace(found, context_bytes=2**40 if plan.micro_batch_size > 2 else 0)

    decision = decide(spec, cluster=cluster, job=job, estimate=doubling_large_batches)
    assert [(plan.strategy, plan.micro_batch_size) for plan in asked] == [("ddp", 4), ("ddp", 2)]
    assert decision.plan == asked[-1]
    assert decision.rejected[0].plan == asked[0]
    assert decision.rejected[0].over_by_bytes > 2**39


def test_plans_that_may_not_be_offered_are_not_and_the_reason_is_told_where_none_may() -> None:
    spec, cluster, job = tiny_spec(), small_cluster(), small_job()
    only_zero2 = decide(
        spec, cluster=cluster, job=job, why_not=lambda job, plan: None if plan.strategy == "zero2" else "not here"
    )
    assert {ranked.plan.strategy for ranked in (*only_zero2.by_strategy, *only_zero2.alternatives)} == {"zero2"}
    with pytest.raises(PlanError, match="ddp is not for us"):
        decide(spec, cluster=cluster, job=job, why_not=lambda job, plan: f"{plan.strategy} is not for us")


def test_one_reduction_a_step_is_obeyed_where_there_is_one_micro_batch_anyway() -> None:
    decision = decide(
        load_model_spec("gpt2"),
        cluster=Cluster(gpu=gpu_preset("H100-80GB-SXM"), gpus=8, gpus_per_node=8),
        job=Job(seq_len=512, global_batch_size=8),
        fixed=FixedParts(sync_each_batch=False),
    )
    assert decision.plan.gradient_accumulation_steps == 1
    assert not decision.plan.sync_each_batch
