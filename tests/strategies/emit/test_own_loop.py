"""What a plan tells to DeepSpeed, accelerate and transformers, and what it refuses to leave unsaid."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from strategies.cluster import gpu_preset
from strategies.decision import Decision
from strategies.emit.accelerator import accelerator_settings
from strategies.emit.surroundings import require_same_surroundings
from strategies.errors import PlanError
from strategies.estimate import NO_ESTIMATE, CauseBytes, Estimate, MemoryProfile, Phase, PhaseBytes
from strategies.job import Attention, LossImplementation, OptimizerName, Precision
from strategies.offload import POSSIBLE
from strategies.plan import ActivationCheckpointing, Buckets, OffloadDevice, Plan, StrategyName
from strategies.trained import Lora
from strategies.units import GIB, MIB
from tests.strategies.builders import small_cluster, small_job

ZERO = {StrategyName.ZERO1: 1, StrategyName.ZERO2: 2, StrategyName.ZERO3: 3}
WORLD_SIZES = (*(2**power for power in range(13)), 3, 6, 24, 1000)
DDP, FSDP2 = StrategyName.DDP, StrategyName.FSDP2
CPU, NVME = OffloadDevice.CPU, OffloadDevice.NVME
FULL, SELECTIVE = ActivationCheckpointing.FULL, ActivationCheckpointing.SELECTIVE


def decision_for(
    strategy: StrategyName = DDP,
    *,
    gpus: int = 4,
    gpu: str = "test-gpu",
    job: dict[str, Any] | None = None,
    **plan: Any,
) -> Decision:
    """A plan of two samples a pass and three passes a step, on its own: nothing is searched or predicted."""
    buckets = Buckets.outside_deepspeed(5 * MIB)
    size = {"micro_batch_size": 2, "gradient_accumulation_steps": 3, "buckets": buckets}
    return Decision(
        model="tiny",
        num_params=10**6,
        cluster=small_cluster(gpus=gpus, name=gpu),
        job=replace(small_job(global_batch_size=6 * gpus, precision=Precision.FP32), **(job or {})),
        plan=Plan(strategy=strategy, **(size | plan)),
        estimate=replace(NO_ESTIMATE, memory=MemoryProfile(phases=(_phase(GIB),))),
    )


def _phase(num_bytes: int) -> PhaseBytes:
    return PhaseBytes(phase=Phase.BACKWARD, causes=CauseBytes(parameters=num_bytes))


@pytest.mark.deepspeed
@pytest.mark.parametrize("strategy", ZERO)
def test_deepspeed_accepts_every_configuration(strategy: StrategyName, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.runtime import config as reader

    monkeypatch.setattr(reader.dist, "get_rank", lambda: 0)
    placed = [pair for pair in sorted(POSSIBLE[strategy]) if NVME not in pair]
    assert len(placed) == (4 if strategy is StrategyName.ZERO3 else 2)
    for gpus in WORLD_SIZES:
        # Without a process group DeepSpeed takes the world size as 1.
        monkeypatch.setattr(reader.dist, "get_world_size", lambda gpus=gpus: gpus)
        for precision in (Precision.FP32, Precision.FP16, Precision.BF16):
            for optimizer, param in placed:
                decision = decision_for(
                    strategy,
                    gpus=gpus,
                    job={"precision": precision},
                    offload_optimizer=optimizer,
                    offload_param=param,
                )
                config = decision.deepspeed_config()
                read = reader.DeepSpeedConfig(json.loads(json.dumps(config)))
                assert read.train_batch_size == 6 * gpus
                assert read.train_micro_batch_size_per_gpu == 2
                assert read.gradient_accumulation_steps == 3
                assert read.zero_config.stage == ZERO[strategy]
                assert read.zero_config.reduce_bucket_size == 5 * MIB
                assert read.gradient_clipping == 1.0
                assert read.float16_config.enabled is (precision is Precision.FP16)
                assert read.bfloat16_config.enabled is (precision is Precision.BF16)
                assert _device(read.zero_config.offload_optimizer) == optimizer.value
                assert _device(read.zero_config.offload_param) == param.value


def _device(offload: Any) -> str:
    return "none" if offload is None else str(offload.device)


@pytest.mark.parametrize("strategy", [DDP, FSDP2])
def test_no_deepspeed_config_for_other_strategies(strategy: StrategyName) -> None:
    with pytest.raises(PlanError, match=f"strategy={strategy} is not run by DeepSpeed"):
        decision_for(strategy).deepspeed_config()


@pytest.mark.parametrize("precision", [Precision.BF16_AUTOCAST, Precision.FP16_AUTOCAST, Precision.BF16_PURE])
def test_no_deepspeed_config_for_what_it_cannot_say(precision: Precision) -> None:
    with pytest.raises(PlanError, match=f"precision={precision} cannot be told to DeepSpeed"):
        decision_for(StrategyName.ZERO2, job={"precision": precision}).deepspeed_config()


REFUSED = {
    "selective": (decision_for(activation_checkpointing=SELECTIVE), "activation_checkpointing=selective under ddp"),
    "every": (decision_for(activation_checkpointing=FULL, checkpoint_every=2), "checkpoint_every=2"),
    "fused loss": (decision_for(job={"loss": LossImplementation.FUSED}), "loss=fused"),
    "chunked loss": (decision_for(job={"loss": LossImplementation.CHUNKED}), "loss=chunked"),
    "masters": (decision_for(job={"precision": Precision.BF16}), "precision=bf16 under ddp"),
    "autocast": (decision_for(StrategyName.ZERO1, job={"precision": Precision.BF16_AUTOCAST}), "precision=bf16-auto"),
    "nvme": (decision_for(StrategyName.ZERO3, offload_param=NVME), "offload_param=nvme"),
    "place": (decision_for(offload_optimizer=CPU), "strategy ddp cannot run with offload_optimizer=cpu"),
    "lora": (decision_for(job={"lora": Lora(rank=8)}), "lora="),
    "frozen": (decision_for(job={"freeze": ("*embed*",)}), r"freeze=\['\*embed\*'\]"),
    "sgd": (decision_for(FSDP2, job={"optimizer": OptimizerName.SGD}), "fused_optimizer=True under fsdp2"),
    "cpu": (decision_for(FSDP2, gpu="cpu"), "strategy=fsdp2 on gpu=cpu"),
    "fp16": (decision_for(gpu="cpu", job={"precision": Precision.FP16_AUTOCAST}), "precision=fp16-autocast on gpu=cpu"),
}


@pytest.mark.parametrize(("decision", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_word_is_refused_by_name(decision: Decision, message: str) -> None:
    for told in (decision.accelerator_kwargs, decision.training_arguments, decision.loop_settings):
        with pytest.raises(PlanError, match=message):
            told()


def test_formats_that_the_gpu_lacks_are_not_recommended() -> None:
    asked = decision_for(job={"precision": Precision.FP16})
    old = replace(asked, cluster=replace(asked.cluster, gpu=gpu_preset("V100-16GB-SXM2")))
    with pytest.raises(PlanError, match=r"plan again with precision=fp32 or fp16-autocast$"):
        old.loop_settings()


@pytest.mark.parametrize("optimizer", [OptimizerName.LION, OptimizerName.ADAMW_8BIT])
def test_optimizers_outside_torch_are_refused_for_own_loops(optimizer: OptimizerName) -> None:
    decision = decision_for(job={"optimizer": optimizer})
    with pytest.raises(PlanError, match=f"optimizer={optimizer} cannot be told to a loop of your own"):
        decision.loop_settings()
    assert decision.training_arguments()["optim"] in ("lion_32bit", "adamw_8bit")


def test_transformers_is_not_told_what_it_would_do_otherwise() -> None:
    with pytest.raises(PlanError, match="fused_optimizer=True with optimizer=sgd cannot be told to TrainingArguments"):
        decision_for(job={"optimizer": OptimizerName.SGD}).training_arguments()
    with pytest.raises(PlanError, match="strategy=zero2 on gpu=cpu cannot be told to TrainingArguments"):
        decision_for(StrategyName.ZERO2, gpu="cpu").training_arguments()


def test_ddp_by_transformers_needs_room_for_gradients_twice() -> None:
    decision = decision_for()
    assert decision.training_arguments()["ddp_bucket_cap_mb"] == 20.0
    memory = decision.cluster.gpu.memory_bytes
    full = Estimate(
        level=decision.estimate.level,
        memory=MemoryProfile(phases=(_phase(memory - 4 * 10**6 + 1),)),
        peak_reserved_bytes=0,
    )
    with pytest.raises(PlanError, match="strategy=ddp by TrainingArguments holds gradients twice"):
        replace(decision, estimate=full).training_arguments()
    alone = replace(decision, estimate=full, cluster=replace(decision.cluster, gpus=1))
    assert "ddp_bucket_cap_mb" in alone.training_arguments()


def test_ddp_by_accelerate_needs_room_for_gradients_twice_where_they_are_added_up() -> None:
    decision = decision_for()
    assert decision.plan.gradient_accumulation_steps == 3
    memory = MemoryProfile(phases=(_phase(decision.cluster.gpu.memory_bytes - 4 * 10**6 + 1),))
    full = replace(decision, estimate=replace(decision.estimate, memory=memory))
    with pytest.raises(PlanError, match="strategy=ddp by accelerate holds gradients twice"):
        accelerator_settings(full)
    at_once = replace(full.plan, micro_batch_size=6, gradient_accumulation_steps=1)
    assert accelerator_settings(replace(full, plan=at_once)).ddp is not None


def test_loop_settings_say_what_the_model_must_be() -> None:
    job = {"precision": Precision.BF16, "attention": Attention.EAGER, "gradient_clipping": 0.0}
    loop = decision_for(StrategyName.ZERO2, job=job, activation_checkpointing=FULL).loop_settings()
    assert (loop.micro_batch_size, loop.gradient_clipping) == (2, 0.0)
    assert (loop.dtype, loop.attn_implementation, loop.gradient_checkpointing) == ("bfloat16", "eager", True)
    assert (loop.optimizer, loop.optimizer_kwargs) == ("AdamW", {"fused": True})
    assert decision_for(FSDP2, activation_checkpointing=FULL).loop_settings().gradient_checkpointing is False
    assert decision_for(job={"precision": Precision.BF16_AUTOCAST}).loop_settings().dtype == "float32"
    sgd = {"optimizer": OptimizerName.SGD, "fused_optimizer": False}
    assert decision_for(job=sgd).loop_settings().optimizer_kwargs == {"momentum": 0.9, "foreach": True}


@pytest.mark.parametrize("keeps_whole", [True, False])
def test_fsdp2_synchronises_as_planned(keeps_whole: bool) -> None:
    assert accelerator_settings(decision_for(FSDP2, sync_each_batch=not keeps_whole)).sync_each_batch is not keeps_whole


AGREEING = [
    {},
    {"WORLD_SIZE": "4", "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "False"},
    {"WORLD_SIZE": "4", "ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_DEEPSPEED": "true"},
]
DIFFERING = {
    "ranks": ({"WORLD_SIZE": "8"}, "the plan is for gpus=4, but this is one of 8 processes"),
    "precision": ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "mixed_precision=fp16, but the plan's precision=bf16"),
    "framework": ({"ACCELERATE_USE_FSDP": "true"}, "ACCELERATE_USE_FSDP=true in the environment"),
    "device": ({"ACCELERATE_USE_CPU": "True"}, "ACCELERATE_USE_CPU=true in the environment"),
}


@pytest.mark.parametrize("environ", AGREEING)
def test_surroundings_that_agree(environ: dict[str, str]) -> None:
    decision = decision_for(StrategyName.ZERO2, job={"precision": Precision.BF16})
    require_same_surroundings(decision, environ, mixed_precision="bf16", counts_alone=False)


@pytest.mark.parametrize(("environ", "message"), DIFFERING.values(), ids=DIFFERING)
def test_surroundings_that_would_change_the_run(environ: dict[str, str], message: str) -> None:
    decision = decision_for(StrategyName.ZERO2, job={"precision": Precision.BF16})
    with pytest.raises(PlanError, match=message):
        require_same_surroundings(decision, environ, mixed_precision="bf16", counts_alone=False)


def test_a_process_without_a_launcher_is_one_rank_for_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(PlanError, match="the plan is for gpus=4, but this is one of 1 processes"):
        decision_for().accelerator_kwargs()
