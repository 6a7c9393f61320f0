"""One run in the words of several programs: what each says, and what comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from scaling.cli import app
from scaling.explain.convert import convert
from scaling.explain.findings import Severity
from scaling.explain.settings import settings_of
from scaling.explain.sources import FileKind, Launcher, Target
from strategies.cluster import Gpu
from strategies.errors import ScalingError
from strategies.job import Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from tests.scaling.decisions import toy_decision
from tests.scaling.explain.cases import of_deepspeed, of_files, of_text, of_yaml

CONFIG: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "cpu_offload": True, "reduce_bucket_size": 1e6, "overlap_comm": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
}
ON_EIGHT_A100 = ["--world-size", "8", "--model", "llama-2-7b", "--seq-len", "2048", "--gpu", "A100-80GB-SXM"]
YAML = """
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: cpu
  gradient_accumulation_steps: 4
  gradient_clipping: 0.5
  zero3_init_flag: true
  zero3_save_16bit_model: true
"""
FSDP = """
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_offload_params: true
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
"""


def test_deepspeed_file_as_settings() -> None:
    """64 samples on 8 ranks with micro batches of 2: 4 of them a step."""
    found = settings_of(of_deepspeed(CONFIG, world_size=8))
    assert found.strategy is StrategyName.ZERO3
    assert (found.micro_batch_size, found.gradient_accumulation_steps, found.global_batch_size) == (2, 4, 64)
    assert found.precision is Precision.BF16
    assert found.offload_optimizer is OffloadDevice.CPU
    assert found.buckets["reduce_bucket_size"] == 1_000_000
    assert found.buckets["allgather_bucket_size"] == 500_000_000
    assert found.gradient_clipping == 0.5


def test_fsdp_block_as_settings() -> None:
    found = settings_of(of_yaml(FSDP))
    assert found.strategy is StrategyName.FSDP2
    assert found.precision is Precision.BF16_AUTOCAST
    assert found.reshard_after_forward is False
    assert found.offload_param is OffloadDevice.CPU
    assert found.activation_checkpointing is ActivationCheckpointing.FULL


def test_fsdp_survives_the_way_to_the_trainer_and_back() -> None:
    arguments = convert(of_yaml(FSDP), Target.TRAINING_ARGS).text
    back = of_text("args.json", arguments, kind=FileKind.TRAINING_ARGS, world_size=8)
    assert convert(back, Target.ACCELERATE).text == convert(of_yaml(FSDP), Target.ACCELERATE).text


def test_flat_keys_survive_the_way_to_deepspeed_and_back() -> None:
    tree = json.loads(convert(of_yaml(YAML), Target.DEEPSPEED).text)
    assert tree["zero_optimization"]["stage"] == 3
    assert tree["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert tree["gradient_accumulation_steps"] == 4
    back = yaml.safe_load(
        convert(of_deepspeed(tree, world_size=8, launcher=Launcher.ACCELERATE), Target.ACCELERATE).text
    )
    given = yaml.safe_load(YAML)
    assert back["deepspeed_config"] == {**given["deepspeed_config"], "offload_param_device": "none"}
    assert (back["mixed_precision"], back["num_processes"]) == ("bf16", 8)


def test_trainer_gets_the_batch_and_the_learning_rate() -> None:
    found = json.loads(convert(of_deepspeed(CONFIG, world_size=8), Target.TRAINING_ARGS).text)
    assert found["per_device_train_batch_size"] == 2
    assert found["gradient_accumulation_steps"] == 4
    assert (found["learning_rate"], found["adam_beta2"], found["weight_decay"]) == (1e-4, 0.95, 0.1)
    assert (found["bf16"], found["fp16"], found["max_grad_norm"]) == (True, False, 0.5)
    assert found["deepspeed"]["train_batch_size"] == "auto"
    assert found["deepspeed"]["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero2"])
def test_training_arguments_of_a_plan_have_no_mistake(strategy: str) -> None:
    decision = toy_decision(strategy, world_size=4, accumulation=2)
    decision = replace(decision, cluster=replace(decision.cluster, gpu=Gpu(name="a", memory_bytes=2**30)))
    text = json.dumps({"output_dir": "o", **decision.training_arguments()})
    found = of_text("args.json", text, kind=FileKind.TRAINING_ARGS, world_size=4)
    assert [each for each in found.findings if each.severity is not Severity.NOTE] == []
    settings = settings_of(found)
    assert settings.strategy is decision.plan.strategy
    assert (settings.micro_batch_size, settings.gradient_accumulation_steps, settings.global_batch_size) == (1, 2, 8)


def test_plan_is_what_a_case_takes() -> None:
    from strategies.cases import read_case

    tree = json.loads(convert(of_deepspeed(CONFIG, world_size=8), Target.PLAN).text)
    cluster = {"gpu": "A100-80GB-SXM", "gpus": 8, "gpu_memory_gib": 79.0}
    line = {
        "id": 1,
        "model": "llama-2-7b",
        "cluster": cluster,
        "job": {"seq_len": 2048, **tree["job"]},
        "plan": tree["plan"],
    }
    case = read_case(json.dumps(line), number=1)
    assert case.plan is not None
    assert case.plan.gradient_accumulation_steps == 4
    assert case.plan.buckets.reduce_bucket_size == 1_000_000


def test_files_with_mistakes_are_not_converted() -> None:
    with pytest.raises(ScalingError, match="correct it first"):
        convert(of_deepspeed({**CONFIG, "train_batch_size": 63}, world_size=8), Target.PLAN)


AUTO = {"enabled": "auto"}


def test_precision_that_is_left_open_stays_open() -> None:
    """ "auto" in both blocks is no choice of fp32."""
    found = of_deepspeed({**CONFIG, "bf16": AUTO, "fp16": AUTO}, world_size=8, launcher=Launcher.TRAINER)
    flat, arguments = convert(found, Target.ACCELERATE), convert(found, Target.TRAINING_ARGS)
    assert "mixed_precision" not in yaml.safe_load(flat.text)
    assert not {"fp16", "bf16"} & set(json.loads(arguments.text))
    assert all(any("precision" in note for note in each.notes) for each in (flat, arguments))


def test_what_flat_keys_cannot_say_is_told() -> None:
    (told,) = (each for each in convert(of_deepspeed(CONFIG), Target.ACCELERATE).notes if "flat keys" in each)
    for name in ("zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm", "optimizer"):
        assert name in told
    assert "stage," not in told


def test_wrapping_survives_the_way_to_the_trainer_and_back() -> None:
    wrapped = FSDP.replace("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP") + "  fsdp_min_num_params: 20000\n"
    arguments = convert(of_yaml(wrapped), Target.TRAINING_ARGS).text
    assert json.loads(arguments)["fsdp_config"]["auto_wrap_policy"] == "SIZE_BASED_WRAP"
    back = of_text("args.json", arguments, kind=FileKind.TRAINING_ARGS, world_size=8)
    block = yaml.safe_load(convert(back, Target.ACCELERATE).text)["fsdp_config"]
    assert (block["fsdp_auto_wrap_policy"], block["fsdp_min_num_params"]) == ("SIZE_BASED_WRAP", 20000)


@pytest.mark.parametrize("target", Target)
def test_megatron_becomes_nothing_else(target: Target) -> None:
    megatron = "distributed_type: MEGATRON_LM\nnum_processes: 4\nmegatron_lm_config:\n  megatron_lm_tp_degree: 4\n"
    with pytest.raises(ScalingError, match="MEGATRON_LM"):
        convert(of_yaml(megatron), target)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("args.json", '{"output_dir": "o", "per_device_train_batch_size": 1, "deepspeed": "gone.json"}'),
        (
            "a.yaml",
            "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  deepspeed_config_file: gone.json\n",
        ),
    ],
)
def test_run_whose_deepspeed_file_is_gone_is_not_taken_for_ddp(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ScalingError, match=r"gone\.json"):
        convert(of_files(tmp_path, {name: text}), Target.PLAN)


def test_nvme_cannot_be_told_in_flat_keys() -> None:
    nvme = {**CONFIG, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}}
    with pytest.raises(ScalingError, match="deepspeed_config_file"):
        convert(of_deepspeed(nvme, world_size=8), Target.ACCELERATE)


def test_model_tells_whether_it_fits_and_what_would_be_better(tmp_path: Path) -> None:
    """Llama 2 7B with Adam on one A100: 16 bytes a parameter are 100 GiB, which stage 0 needs on every GPU."""
    path = tmp_path / "ds.json"
    stage0 = {**CONFIG, "zero_optimization": {"stage": 0}, "gradient_accumulation_steps": 4}
    path.write_text(json.dumps(stage0))
    words = ["explain", str(path), *ON_EIGHT_A100, "--json"]
    answer = json.loads(CliRunner().invoke(app, words).stdout)
    assert answer["fit"]["fits"] is False
    assert answer["fit"]["needed_bytes"] > 16 * 6.7e9
    assert answer["fit"]["better"]["device_bytes"] < answer["fit"]["usable_bytes"]
    assert answer["fit"]["job"]["global_batch_size"] == 64


def test_plan_with_a_model_is_a_plan_file(tmp_path: Path) -> None:
    from strategies.decision import Decision
    from strategies.serialize import from_json

    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    words = ["explain", str(path), *ON_EIGHT_A100, "--to", "plan"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    decision = from_json(Decision, result.stdout, source="plan.json")
    assert decision.plan.strategy is StrategyName.ZERO3
    assert decision.plan.buckets.reduce_bucket_size == 1_000_000
    assert decision.plan.offload_optimizer is OffloadDevice.CPU
