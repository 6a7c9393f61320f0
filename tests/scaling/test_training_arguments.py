"""transformers as installed takes a plan's arguments without a mismatch, for every strategy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from accelerate.utils import FullyShardedDataParallelPlugin

from strategies.cluster import Gpu
from strategies.decision import Decision
from strategies.estimate import CauseBytes, MemoryProfile, Phase, PhaseBytes
from strategies.job import OptimizerName, Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice
from strategies.units import GIB
from tests.scaling.decisions import toy_decision

GPUS = 8
SMALL = MemoryProfile(phases=(PhaseBytes(phase=Phase.BACKWARD, causes=CauseBytes(parameters=1)),))
FULL = ActivationCheckpointing.FULL


def decision_for(
    strategy: str,
    *,
    gpu: str = "a",
    precision: Precision = Precision.BF16,
    job: dict[str, Any] | None = None,
    **plan: Any,
) -> Decision:
    decision = toy_decision(strategy, world_size=GPUS, accumulation=3, max_norm=0.5, precision=precision)
    return replace(
        decision,
        cluster=replace(decision.cluster, gpu=Gpu(name=gpu, memory_bytes=GIB)),
        job=replace(decision.job, **(job or {})),
        plan=replace(decision.plan, **plan),
        estimate=replace(decision.estimate, memory=SMALL),
    )


@pytest.fixture
def like_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process pass for one of 8 with a GPU, for the checks that TrainingArguments makes."""
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    monkeypatch.setattr(transformers.TrainingArguments, "world_size", GPUS)


def arguments_of(decision: Decision, folder: Path) -> transformers.TrainingArguments:
    arguments = transformers.TrainingArguments(output_dir=str(folder), **decision.training_arguments())
    assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * GPUS == 3 * GPUS
    assert arguments.max_grad_norm == 0.5
    assert arguments.train_batch_size == arguments.per_device_train_batch_size == 1
    return arguments


@pytest.mark.deepspeed
@pytest.mark.usefixtures("like_gpus")
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("offload", [OffloadDevice.NONE, OffloadDevice.CPU])
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_deepspeed_settings_match(strategy: str, offload: OffloadDevice, precision: Precision, tmp_path: Path) -> None:
    decision = decision_for(strategy, precision=precision, offload_optimizer=offload)
    arguments = arguments_of(decision, tmp_path)
    # What does not match raises later, when the model is there.
    assert arguments.hf_deepspeed_config.mismatches == []
    # accelerate keeps DeepSpeed from printing in its own way.
    silent = {"steps_per_print": float("inf")}
    assert arguments.hf_deepspeed_config.config == decision.deepspeed_config() | silent
    assert (arguments.bf16, arguments.fp16) == (precision is Precision.BF16, precision is Precision.FP16)
    assert arguments.activation_checkpointing is False


@pytest.mark.usefixtures("like_gpus")
def test_fsdp2_settings_reach_its_plugin(tmp_path: Path) -> None:
    decision = decision_for("fsdp2", activation_checkpointing=FULL, reshard_after_forward=False)
    arguments = arguments_of(decision, tmp_path)
    plugin = FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is False
    assert plugin.activation_checkpointing is True
    assert type(plugin.cpu_offload).__name__ == "OffloadPolicy"
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert arguments.activation_checkpointing is False, "the plugin does it"
    assert arguments.bf16 is True
    assert arguments.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}
    offloaded = decision_for("fsdp2", offload_param=OffloadDevice.CPU, offload_optimizer=OffloadDevice.CPU)
    plugin = FullyShardedDataParallelPlugin(**arguments_of(offloaded, tmp_path).fsdp_plugin_args)
    assert type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"


@pytest.mark.usefixtures("like_gpus")
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
def test_ddp_settings_reach_its_wrapper(tmp_path: Path) -> None:
    decision = decision_for("ddp", precision=Precision.BF16_AUTOCAST, activation_checkpointing=FULL)
    arguments = arguments_of(decision, tmp_path)
    assert arguments.ddp_bucket_cap_mb == 24 / 2**20
    assert arguments.ddp_find_unused_parameters is False
    assert arguments.ddp_broadcast_buffers is False
    assert (arguments.bf16, arguments.use_cpu, arguments.fsdp_plugin_args) == (True, False, None)
    assert arguments.activation_checkpointing is True
    assert arguments.activation_checkpointing_kwargs == {"use_reentrant": False}


@pytest.mark.parametrize(
    ("optimizer", "fused", "wanted"),
    [
        (OptimizerName.ADAMW, True, "adamw_torch_fused"),
        (OptimizerName.ADAMW, False, "adamw_torch"),
        (OptimizerName.ADAMW_8BIT, True, "adamw_8bit"),
        (OptimizerName.SGD, False, "sgd"),
        (OptimizerName.LION, True, "lion_32bit"),
        (OptimizerName.ADAFACTOR, True, "adafactor"),
    ],
)
def test_optimizers_are_known(optimizer: OptimizerName, fused: bool, wanted: str, tmp_path: Path) -> None:
    decision = decision_for(
        "ddp", gpu="cpu", precision=Precision.FP32, job={"optimizer": optimizer, "fused_optimizer": fused}
    )
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), **decision.training_arguments())
    assert arguments.optim.value == wanted
    assert arguments.use_cpu is True
    assert arguments.optim_args == ("momentum=0.9" if optimizer is OptimizerName.SGD else None)
