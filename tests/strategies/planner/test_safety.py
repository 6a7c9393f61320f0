"""How sure a plan must be to fit."""

from dataclasses import replace

import pytest

from strategies.cluster import Cluster, gpu_preset
from strategies.conformal import conformal_range
from strategies.errors import NoPlanFitsError, PlanError
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.memory import interval
from strategies.memory.predict import predict
from strategies.plan import OffloadDevice, StrategyName
from strategies.planner.safety import margin, needed_bytes, shortage
from strategies.records import Device
from strategies.search import FixedParts, candidates
from strategies.select import decide
from strategies.units import KIB
from tests.strategies.planner.builders import question

TENTHS = [0.1 * number for number in range(1, 40)]  # 0.1 to 3.9, 39 of them


def test_upper_end_is_the_rank_of_split_conformal_prediction() -> None:
    # Lei et al. 2018, arXiv:1604.04173: rank ceil((n + 1)(1 - alpha / 2)) of n = 39: 38 for 90 %, 30 for 50 %.
    assert conformal_range(TENTHS, coverage=0.9) == (pytest.approx(0.2), pytest.approx(3.8))
    assert conformal_range(TENTHS, coverage=0.5) == (pytest.approx(1.0), pytest.approx(3.0))
    assert conformal_range(TENTHS, coverage=0.99) is None  # the rank would be 40


def test_margin_scales_what_torch_allocates_and_not_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "shipped_ratios", lambda device: tuple(TENTHS))
    asked = question("llama-3.2-1b")
    plan = next(candidates(asked.spec, cluster=asked.cluster, job=asked.job, fixed=asked.fixed))
    estimate = predict(asked.spec, cluster=asked.cluster, job=asked.job, plan=plan)
    allocated = estimate.peak_allocated_bytes + estimate.unusable_bytes
    assert needed_bytes(estimate, cluster=asked.cluster, safety=0.5) == round(3.0 * allocated) + estimate.context_bytes
    assert needed_bytes(estimate, cluster=asked.cluster, safety=0.0) == estimate.device_bytes
    exact = replace(asked.cluster, gpu=replace(asked.cluster.gpu, memory_bytes=estimate.device_bytes))
    assert shortage(estimate, cluster=exact) is None
    assert shortage(estimate, cluster=exact, safety=0.5) == ("GPU memory", round(2.0 * allocated))


def test_predictions_that_were_too_high_give_no_discount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "shipped_ratios", lambda device: tuple(0.9 for _ in range(39)))
    assert margin(Device.GPU, 0.9) == 1.0


@pytest.mark.parametrize("safety", [-0.1, 1.0, float("nan")])
def test_safety_outside_its_range_is_refused(safety: float) -> None:
    with pytest.raises(PlanError, match=r"must be from 0 \(the point estimate\) to below 1"):
        margin(Device.GPU, safety)


def test_an_interval_wider_than_the_records_can_tell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "shipped_ratios", lambda device: tuple(TENTHS))
    with pytest.raises(PlanError, match=r"safety=0\.99 needs more than the 39 predictions on record"):
        margin(Device.GPU, 0.99)


def test_without_records_the_point_estimate_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "shipped_ratios", lambda device: (1.5, 1.6))
    assert margin(Device.GPU, 0.9) == 1.0


def test_a_plan_that_locks_more_than_the_process_may_is_rejected_with_the_number() -> None:
    # deepspeed.ai, config-json, offload_param: 5 buffers of 1e8 elements; `ulimit -l` is 64 KiB on many systems.
    cluster = replace(Cluster(gpu=gpu_preset("A100-80GB-SXM"), gpus=8, gpus_per_node=8), locked_memory_bytes=64 * KIB)
    fixed = FixedParts(
        strategy=StrategyName.ZERO3, offload_param=OffloadDevice.NVME, offload_optimizer=OffloadDevice.CPU
    )
    spec, job = load_model_spec("llama-3-8b"), Job(seq_len=1024, global_batch_size=8)
    with pytest.raises(NoPlanFitsError, match=r"needs 953.67 MiB of locked memory a rank.*ulimit -l 976563"):
        decide(spec, cluster=cluster, job=job, fixed=fixed)
    assert decide(spec, cluster=replace(cluster, locked_memory_bytes=None), job=job, fixed=fixed).plan
