"""A plan that these processes cannot run as it is written is refused, with both values."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaling.check_plan import ACCELERATE_CONFIG, check_estimate, check_plan
from scaling.errors import EngineError, LaunchError
from scaling.launch_env import LaunchEnvironment
from strategies.cluster import gpu_preset
from strategies.decision import Decision
from strategies.emit.deepspeed import deepspeed_config
from strategies.errors import JobError, PlanError
from strategies.estimate import CauseBytes, MemoryProfile, Phase, PhaseBytes
from strategies.job import OptimizerName, Precision
from strategies.load_model import load_model_spec
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.serialize import read_json
from tests.scaling.decisions import plan_tiny, toy_decision


def launched(world_size: int) -> LaunchEnvironment:
    return LaunchEnvironment(rank=0, local_rank=0, world_size=world_size, local_world_size=world_size, is_launched=True)


def check(decision: Decision, folder: Path, *, world_size: int = 2, **environ: str) -> None:
    check_plan(decision, plan_path=folder / "plan.json", launch=launched(world_size), environ=environ)


@pytest.fixture
def zero2() -> Decision:
    return toy_decision("zero2", world_size=2, accumulation=4, max_norm=1.0)


def test_a_plan_beside_its_own_deepspeed_json_is_accepted(zero2: Decision, tmp_path: Path) -> None:
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps(deepspeed_config(zero2)))
    check(zero2, tmp_path, **{ACCELERATE_CONFIG: str(path)})


def test_another_world_size_is_refused(zero2: Decision, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"the plan is for gpus=2, but world_size=3 processes were started"):
        check(zero2, tmp_path, world_size=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient_clipping": 0.5}, r"gradient_clipping is 0.5 in .*deepspeed.json but 1.0 in the plan"),
        ({"zero_optimization": {"stage": 3}}, r"zero_optimization.allgather_bucket_size is absent in .* but 6"),
        ({"zero_force_ds_cpu_optimizer": 0}, r"zero_force_ds_cpu_optimizer is 0 in .* but false"),
        ({"optimizer": {"type": "AdamW"}}, r'optimizer is {"type": "AdamW"} in .* but absent in the plan'),
    ],
)
def test_a_deepspeed_json_that_differs_is_refused(
    zero2: Decision, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    (tmp_path / "deepspeed.json").write_text(json.dumps({**(deepspeed_config(zero2) or {}), **changes}))
    with pytest.raises(LaunchError, match=message):
        check(zero2, tmp_path)


def test_the_json_that_accelerate_names_is_checked_too(zero2: Decision, tmp_path: Path) -> None:
    named = tmp_path / "elsewhere.json"
    named.write_text(json.dumps({**(deepspeed_config(zero2) or {}), "train_batch_size": 16}))
    with pytest.raises(LaunchError, match=r"train_batch_size is 16 in .*elsewhere.json but 8 in the plan"):
        check(zero2, tmp_path, **{ACCELERATE_CONFIG: str(named)})


def test_a_deepspeed_json_for_a_ddp_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.json").write_text("{}")
    with pytest.raises(LaunchError, match="configures DeepSpeed, but the plan's strategy is ddp"):
        check(toy_decision("ddp", world_size=2, accumulation=1), tmp_path)


@pytest.mark.parametrize(
    ("strategy", "environ", "message"),
    [
        ("zero2", {"ACCELERATE_MIXED_PRECISION": "bf16"}, "mixed_precision=bf16, but the plan says precision=fp32"),
        ("zero2", {"ACCELERATE_USE_FSDP": "true"}, "told to use FSDP, but the plan's strategy is zero2"),
        ("ddp", {"ACCELERATE_USE_DEEPSPEED": "true"}, "told to use DEEPSPEED, but the plan's strategy is ddp"),
    ],
)
def test_settings_of_accelerate_that_would_have_no_effect_are_refused(
    strategy: str, environ: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LaunchError, match=message):
        check(toy_decision(strategy, world_size=2, accumulation=1), tmp_path, **environ)


@pytest.mark.parametrize("text", ["{", None], ids=["not JSON", "missing"])
def test_a_deepspeed_json_that_cannot_be_read_is_told(zero2: Decision, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "named.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(LaunchError, match="cannot read"):
        check(zero2, tmp_path, **{ACCELERATE_CONFIG: str(path)})


def test_a_batch_that_does_not_divide_is_refused(zero2: Decision, tmp_path: Path) -> None:
    wrong = replace(zero2, job=replace(zero2.job, global_batch_size=7))
    with pytest.raises(PlanError, match="global_batch_size=7 is not a positive multiple"):
        check(wrong, tmp_path)


def test_accumulation_that_contradicts_the_batch_is_refused(zero2: Decision, tmp_path: Path) -> None:
    wrong = replace(zero2, plan=replace(zero2.plan, gradient_accumulation_steps=3))
    with pytest.raises(PlanError, match=r"gradient_accumulation_steps=3 in the plan, but .* = 4"):
        check(wrong, tmp_path)


def test_pure_bf16_beside_the_copy_that_deepspeed_keeps_is_refused_by_name(zero2: Decision, tmp_path: Path) -> None:
    wrong = replace(zero2, job=replace(zero2.job, precision=Precision.BF16_PURE))
    with pytest.raises(EngineError, match="precision=bf16-pure cannot be trained under zero2 yet"):
        check(wrong, tmp_path)


def test_formats_that_the_gpu_lacks_are_not_recommended(zero2: Decision, tmp_path: Path) -> None:
    cluster = replace(zero2.cluster, gpu=gpu_preset("V100-16GB-SXM2"))
    wrong = replace(zero2, cluster=cluster, job=replace(zero2.job, precision=Precision.BF16))
    with pytest.raises(EngineError, match=r"plan again with fp32 or fp16 or fp16-autocast$"):
        check(wrong, tmp_path)


def test_fused_descent_on_shards_that_torch_does_not_know_is_refused(tmp_path: Path) -> None:
    decision = toy_decision("fsdp2", world_size=2, accumulation=1)
    decision = replace(decision, job=replace(decision.job, optimizer=OptimizerName.SGD))
    with pytest.raises(EngineError, match=r"fused_optimizer=True cannot be trained under fsdp2 .* with False"):
        check(decision, tmp_path)


@pytest.mark.parametrize(
    ("strategy", "change", "message"),
    [
        ("zero3", {"offload_optimizer": OffloadDevice.NVME}, "offload_optimizer=nvme .*libaio-dev.*=cpu$"),
        ("zero2", {"offload_param": OffloadDevice.CPU}, "zero2 cannot run with .* offload_param=cpu"),
        ("ddp", {"offload_optimizer": OffloadDevice.CPU}, "ddp cannot run with offload_optimizer=cpu"),
        ("fsdp2", {"offload_optimizer": OffloadDevice.CPU}, "fsdp2 cannot run with offload_optimizer=cpu"),
    ],
)
def test_offload_that_no_engine_runs_is_refused_by_name(
    strategy: str, change: dict[str, OffloadDevice], message: str, tmp_path: Path
) -> None:
    decision = toy_decision(strategy, world_size=2, accumulation=1)
    fields: dict[str, Any] = dict(change)
    with pytest.raises((EngineError, PlanError), match=message):
        check(replace(decision, plan=replace(decision.plan, **fields)), tmp_path)


@pytest.mark.parametrize(
    ("strategy", "optimizer", "is_fused", "message"),
    [
        ("zero2", OptimizerName.ADAFACTOR, True, "optimizer=adafactor cannot be trained under zero2"),
        ("fsdp2", OptimizerName.LION, True, "optimizer=lion cannot be trained under fsdp2"),
        ("ddp", OptimizerName.ADAMW_8BIT, False, "fused_optimizer=False cannot be trained under ddp .* with True"),
    ],
)
def test_update_rules_that_no_engine_runs_are_refused_by_name(
    strategy: str, optimizer: OptimizerName, is_fused: bool, message: str, tmp_path: Path
) -> None:
    decision = toy_decision(strategy, world_size=2, accumulation=1)
    job = replace(decision.job, optimizer=optimizer, fused_optimizer=is_fused)
    with pytest.raises(EngineError, match=message):
        check(replace(decision, job=job), tmp_path)


def test_a_rule_without_its_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    decision = toy_decision("ddp", world_size=2, accumulation=1)
    with pytest.raises(EngineError, match=r"optimizer=lion needs bitsandbytes.*memory-scaling\[optimizers\]"):
        check(replace(decision, job=replace(decision.job, optimizer=OptimizerName.LION)), tmp_path)


def test_a_strategy_without_its_extra_is_refused(
    zero2: Decision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(EngineError, match=r"strategy=zero2 needs DeepSpeed.*memory-scaling\[deepspeed\]"):
        check(zero2, tmp_path)


@pytest.fixture
def planned(tmp_path: Path) -> Decision:
    return read_json(Decision, plan_tiny(tmp_path, "ddp", world_size=2))


def warnings_of(decision: Decision, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="scaling"):
        check_estimate(decision, load_model_spec(decision.model))
    return [record.getMessage() for record in caplog.records]


def test_a_plan_as_the_planner_writes_it_has_its_own_estimate(
    planned: Decision, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(planned, caplog) == []


@pytest.mark.parametrize(
    "edited",
    [
        lambda plan: replace(plan, job=replace(plan.job, seq_len=128)),
        lambda plan: replace(plan, plan=replace(plan.plan, strategy=StrategyName.ZERO3)),
        lambda plan: replace(plan, plan=replace(plan.plan, activation_checkpointing=ActivationCheckpointing.FULL)),
    ],
    ids=["seq_len", "strategy", "activation_checkpointing"],
)
def test_an_edited_plan_is_told_once_with_both_peaks(
    edited: Callable[[Decision], Decision], planned: Decision, caplog: pytest.LogCaptureFixture
) -> None:
    decision = edited(planned)
    written = planned.estimate.peak_allocated_bytes
    (message,) = warnings_of(decision, caplog)
    assert f"({written} and " in message
    assert "plan again" in message


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_of_bytes_beyond_any_computer_is_refused_by_name(sign: int, planned: Decision) -> None:
    first, *others = planned.estimate.memory.phases
    huge = replace(first, causes=replace(first.causes, logits=sign * 10**400))
    memory = MemoryProfile(phases=(huge, *others))
    edited = replace(planned, estimate=replace(planned.estimate, memory=memory))
    with pytest.raises(
        PlanError, match=r"the plan has estimate\.memory\.phases\[0\]\.causes\.logits=-?10*\.\.\. \(40. dig"
    ):
        check_estimate(edited, load_model_spec(edited.model))


def test_a_sequence_beyond_the_positions_is_refused(planned: Decision) -> None:
    wrong = replace(planned, job=replace(planned.job, seq_len=129))
    with pytest.raises(JobError, match="seq_len=129 is longer than the 128 positions"):
        check_estimate(wrong, load_model_spec(wrong.model))


@pytest.mark.parametrize(
    "memory",
    [
        MemoryProfile(phases=()),
        MemoryProfile(phases=(PhaseBytes(phase=Phase.FORWARD, causes=CauseBytes()),)),
    ],
    ids=["no phases", "no bytes"],
)
def test_an_estimate_of_nothing_is_refused(memory: MemoryProfile, planned: Decision) -> None:
    empty = replace(planned.estimate, memory=memory)
    with pytest.raises(PlanError, match="peak_allocated_bytes=0, which must be above zero"):
        check_estimate(replace(planned, estimate=empty), load_model_spec(planned.model))
