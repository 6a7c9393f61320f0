"""Which ways of training are compared, and why some are not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.parity_models import MODELS, planner
from scaling.errors import ConfigError, EngineError
from scaling.parity.variants import VARIANTS, chosen_names, plain_decision, plan_variants
from strategies.errors import PlanError
from strategies.job import Job, LossImplementation, OptimizerName, Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.search import FixedParts

FIXED = FixedParts(micro_batch_size=2, activation_checkpointing=ActivationCheckpointing.FULL)


def plan_of(*, ranks: int = 2, **job: Any) -> Any:
    return planner(MODELS[0], Job(seq_len=64, global_batch_size=8, precision=Precision.FP32, **job), num_ranks=ranks)


def test_a_strategy_means_all_its_variants_and_a_variant_itself() -> None:
    assert chosen_names([]) == tuple(VARIANTS)
    assert chosen_names(["zero3-cpu-both", "ddp"]) == ("ddp", "zero3-cpu-both")
    fsdp2 = chosen_names(["fsdp2"])
    assert {VARIANTS[name].strategy for name in fsdp2} == {StrategyName.FSDP2}
    assert len(fsdp2) > 2


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--strategies has 'zero4'; give names out of ddp, .*zero3-cpu-both"):
        chosen_names(["ddp", "zero4"])


def test_every_variant_is_planned_as_it_is_named() -> None:
    planned, _ = plan_variants(tuple(VARIANTS), plan_of(), fixed=FIXED)
    plans = {each.name: each.decision.plan for each in planned}
    assert {"ddp", "zero1", "zero2", "zero3", "zero2-cpu-optimizer", "zero3-cpu-both", "fsdp2"} <= set(plans)
    assert {plan.micro_batch_size for plan in plans.values()} == {2}
    assert {plan.gradient_accumulation_steps for plan in plans.values()} == {2}
    assert {plan.activation_checkpointing for plan in plans.values()} == {ActivationCheckpointing.FULL}
    both = plans["zero3-cpu-both"]
    assert (both.offload_optimizer, both.offload_param) == (OffloadDevice.CPU, OffloadDevice.CPU)
    assert not plans["fsdp2-kept"].reshard_after_forward
    assert not plans["fsdp2-whole-gradients"].sync_each_batch
    assert plans["ddp"].offload_optimizer is OffloadDevice.NONE


def test_what_is_not_installed_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deepspeed" else find_spec(name))
    planned, left_out = plan_variants(("ddp", "zero2", "fsdp2"), plan_of(), fixed=FIXED)
    assert [each.name for each in planned] == ["ddp", "fsdp2"]
    assert [each.name for each in left_out] == ["zero2"]
    assert "needs DeepSpeed, which is not installed" in left_out[0].reason
    with pytest.raises(EngineError, match="needs DeepSpeed"):
        plan_variants(("zero2",), plan_of(), fixed=FIXED)


def test_a_batch_that_no_variant_can_cut_is_an_error() -> None:
    with pytest.raises(PlanError, match="global_batch_size=8"):
        plan_variants(("ddp", "fsdp2"), plan_of(ranks=3), fixed=FIXED)


def test_plain_pytorch_takes_the_whole_batch_in_fp32_with_the_library_s_loss() -> None:
    (ddp,), _ = plan_variants(("ddp",), plan_of(loss=LossImplementation.FUSED), fixed=FIXED)
    plain = plain_decision(ddp.decision, keeps_passes=False)
    assert (plain.plan.micro_batch_size, plain.plan.gradient_accumulation_steps, plain.cluster.gpus) == (8, 1, 1)
    assert plain.plan.activation_checkpointing is ActivationCheckpointing.NONE
    assert (plain.job.precision, plain.job.loss) == (Precision.FP32, LossImplementation.STANDARD)
    assert plain.job.optimizer is OptimizerName.ADAMW


def test_where_samples_are_compared_plain_pytorch_makes_the_passes_of_all_ranks() -> None:
    (ddp,), _ = plan_variants(("ddp",), plan_of(), fixed=FIXED)
    plain = plain_decision(ddp.decision, keeps_passes=True)
    # 2 ranks with micro batches of 2 make passes of 4 samples, two a step.
    assert (plain.plan.micro_batch_size, plain.plan.gradient_accumulation_steps) == (4, 2)
