"""Mistakes that users make, each told once, with its key and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaling.explain.explanation import Asked
from scaling.explain.findings import Severity
from scaling.explain.fixing import fixed_files, left_to_do
from scaling.explain.sources import FileKind, Launcher
from tests.scaling.explain.cases import errors, of_deepspeed, of_files, of_text, of_yaml

PLAIN: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
FLAT = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 4
deepspeed_config:
  {lines}
"""


def flat(*lines: str) -> str:
    return FLAT.format(lines="\n  ".join(lines))


def zero(**keys: Any) -> dict[str, Any]:
    return {**PLAIN, "zero_optimization": {"stage": 2, **keys}}


def test_plain_file_has_no_mistake() -> None:
    found = of_deepspeed(PLAIN, world_size=4)
    assert [each for each in found.findings if each.severity is not Severity.NOTE] == []
    assert found.verdict_on("ds.json") == "valid"


@pytest.mark.parametrize(
    ("tree", "key", "fix"),
    [
        (
            {**PLAIN, "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8},
            "train_batch_size",
            "train_batch_size=16",
        ),
        (zero(offload_param={"device": "cpu"}), "zero_optimization.offload_param", "stage=3"),
        ({**PLAIN, "fp16": {"enabled": True}}, "fp16.enabled, bf16.enabled", "fp16.enabled=false"),
        (
            zero(stage=3, offload_optimizer={"device": "nvme"}),
            "zero_optimization.offload_optimizer.nvme_path",
            "nvme_path",
        ),
        (zero(cpu_offload=True, offload_optimizer={"device": "cpu"}), "zero_optimization.cpu_offload", "take"),
        (zero(stage=5), "zero_optimization.stage", "0, 1, 2, 3"),
        (
            zero(stage3_param_persitance_threshold=1),
            "zero_optimization.stage3_param_persitance_threshold",
            "persistence",
        ),
        (zero(offload_optimizer=True), "zero_optimization.offload_optimizer", '{"device": "cpu"}'),
        ({**PLAIN, "zero_force_ds_cpu_optimiser": False}, "zero_force_ds_cpu_optimiser", "cpu_optimizer"),
        ({**PLAIN, "sparse_gradients": True}, "sparse_gradients", "take sparse_gradients out"),
        ({**PLAIN, "elasticity": {"enabled": True}}, "elasticity", "take elasticity out"),
        (zero(mics_shard_size=8), "zero_optimization.mics_shard_size", "take"),
        ({**PLAIN, "gradient_clipping": "auto"}, "gradient_clipping", "give a value"),
        ({**PLAIN, "optimizer": {"type": "AdmaW"}}, "optimizer.type", "AdamW"),
        ({**PLAIN, "optimizer": {"type": "SGD", "params": {}}}, "zero_allow_untested_optimizer", "true"),
        (
            {**PLAIN, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
            "scheduler.params.warmup_num_steps",
            "1",
        ),
        (
            {**PLAIN, "scheduler": {"type": "WarmupLR", "params": {"warm_up_num_steps": 5}}},
            "scheduler.params.warm_up_num_steps",
            "warmup_num_steps",
        ),
        ({**PLAIN, "scheduler": {"type": "Cosine"}}, "scheduler.type", "WarmupLR"),
        ({**PLAIN, "fp16": {"enabled": "false!"}}, "fp16.enabled", "true or false"),
        ({**PLAIN, "train_micro_batch_size_per_gpu": "4"}, "train_micro_batch_size_per_gpu", "4"),
        (zero(reduce_bucket_size=0), "zero_optimization.reduce_bucket_size", "above 0"),
        (zero(reduce_bucket_size="5e8"), "zero_optimization.reduce_bucket_size", "whole number"),
        (
            {**PLAIN, "zero_optimization": {"stgae": 3, "offload_param": {"device": "cpu"}}},
            "zero_optimization.stgae",
            "write stage",
        ),
        (zero(stage="three", offload_param={"device": "cpu"}), "zero_optimization.stage", "0, 1, 2, 3"),
        ({**PLAIN, "offload_optimizer": {"device": "cpu"}}, "offload_optimizer", "move it into zero_optimization"),
        (
            {**dict(list(PLAIN.items())[1:]), "train_micro_batch_size_per_device": 2, "train_batch_size": 8},
            "train_micro_batch_size_per_device",
            "write train_micro_batch_size_per_gpu",
        ),
        ({**PLAIN, "bf16": True}, "bf16", '{"enabled": true}'),
        ({**PLAIN, "optimizer": "AdamW"}, "optimizer", '{"type": "AdamW"}'),
        (
            {**PLAIN, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weightdecay": 0.1}}},
            "optimizer.params.weightdecay",
            "write weight_decay",
        ),
        (
            {**PLAIN, "scheduler": {"type": "WarmupDecayLR", "params": {"total_nm_steps": 9}}},
            "scheduler.params.total_nm_steps",
            "write total_num_steps",
        ),
        ({**dict(list(PLAIN.items())[:3]), "bfloat16": {"enaled": True}}, "bf16.enaled", "write enabled"),
        ({**PLAIN, "optimizer": {"type": "AdamW", "params": {"lr": "3e-5"}}}, "optimizer.params.lr", "write 3e-05"),
        (
            {**PLAIN, "fp16": {"enabled": True, "loss_scale_window": "a"}, "bf16": {"enabled": False}},
            "fp16.loss_scale_window",
            "whole number",
        ),
        (
            zero(stage=3, offload_optimizer={"device": "nvme", "nvme_path": ["/a"]}),
            "zero_optimization.offload_optimizer.nvme_path",
            "text",
        ),
        ({**PLAIN, "scheduler": {"type": "WarmupDecayLR", "params": 3}}, "scheduler.params", "block"),
        ({**PLAIN, "torch_autocast": {"enabled": True, "dtype": "bfloat_16"}}, "torch_autocast.dtype", "bfloat16"),
        ({**PLAIN, "zero_optimization": 2}, "zero_optimization", '{"stage": 2}'),
        ({**PLAIN, "bf16": {"enabled": True, "bf16": True}}, "bf16.bf16", "take bf16.bf16 out"),
    ],
)
def test_mistake_in_a_deepspeed_file_is_told_once(tree: dict[str, Any], key: str, fix: str) -> None:
    found = errors(of_deepspeed(tree, world_size=4))
    without_triad = [each for each in found if each.key in (key, "train_batch_size")]
    assert [each.key for each in found] == [key], found
    assert fix in f"{without_triad[0].fix} {without_triad[0].message}"


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        (flat("zero_stgae: 3"), "deepspeed_config.zero_stgae", "write zero_stage"),
        (flat("zero_stgae: 3", "offload_param_device: cpu"), "deepspeed_config.zero_stgae", "write zero_stage"),
        (flat("zero_stage: 2") + "ipex_config:\n  ipex: true\n", "ipex_config", "earlier versions"),
        (
            flat("zero_stage: 3", "offload_optimizer_device: nvme", "offload_optimizer_nvme_path: /local_nvme"),
            "deepspeed_config.offload_optimizer_nvme_path",
            "deepspeed_config_file",
        ),
        (flat("zero_stage: 2", "offload_param_device: cpu"), "deepspeed_config.offload_param_device", "zero_stage=3"),
        (flat("zero_stage: 2", "offload_optimizer_device: cqu"), "deepspeed_config.offload_optimizer_device", "cpu"),
        (flat("zero_stage: four"), "deepspeed_config.zero_stage", "whole number"),
        (flat("zero_stage: 4"), "deepspeed_config.zero_stage", "0, 1, 2 or 3"),
        (flat("zero_stage: 2").replace("bf16", "no"), "mixed_precision", "'no'"),
        (flat("zero_stage: 2").replace("bf16", "bf_16"), "mixed_precision", "bf16"),
        (flat("zero_stage: 2") + "num_procesess: 8\n", "num_procesess", "take num_procesess out"),
        ("mixed_precision: bf16\nnum_processes: 2\n", "distributed_type", "MULTI_GPU"),
        ("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16\ngpu_ids: 0\n", "gpu_ids", "text"),
        (
            "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\nfsdp_config:\n"
            "  fsdp_auto_wrap_polcy: NO_WRAP\n",
            "fsdp_config.fsdp_auto_wrap_polcy",
            "fsdp_auto_wrap_policy",
        ),
        (
            "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp8\nfp8_config:\n  bacend: TE\n",
            "fp8_config.bacend",
            "write fp8_backend",
        ),
        (
            "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\nparallelism_config:\n"
            "  parallelism_config_dp_shard_size: 2\n  parallelism_config_tp_size: 2\n",
            "parallelism_config",
            "4 processes",
        ),
    ],
)
def test_mistake_in_an_accelerate_file_is_told_once(text: str, key: str, fix: str) -> None:
    found = errors(of_yaml(text))
    assert [each.key for each in found] == [key], found
    assert fix in f"{found[0].fix} {found[0].message}"


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        ("per_device_train_batch_size: 4\nlearning_rate: 5e-5\n", "learning_rate", "write 5.0e-05"),
        ("per_device_train_batch_size: 4\nfp16: true\nbf16: true\n", "fp16, bf16", "fp16=false"),
        ("per_device_train_batch_size: 4\nevaluation_strategy: steps\n", "evaluation_strategy", "eval_strategy"),
        (
            "output_dir: a\nevaluation_strategy: epoch\nsave_strategy: epoch\nload_best_model_at_end: true\n",
            "evaluation_strategy",
            "eval_strategy",
        ),
        (
            "output_dir: a\nper_devise_train_batch_size: 4\n",
            "per_devise_train_batch_size",
            "per_device_train_batch_size",
        ),
        ("output_dir: a\neval_strategy: no\n", "eval_strategy", "'no' with quotes"),
        ("output_dir: a\noptim: adamw_torch_fuse\n", "optim", "adamw_torch_fused"),
        ("output_dir: a\nfsdp: full_shart\n", "fsdp", "full_shard"),
        ("output_dir: a\nfsdp: hybrid_shard auto_wrap\n", "fsdp", "version=1"),
        (
            "output_dir: a\nfsdp: true\nfsdp_config:\n  reshard_after_foward: false\n",
            "fsdp_config.reshard_after_foward",
            "reshard_after_forward",
        ),
        ("output_dir: a\nsharded_ddp: simple\n", "sharded_ddp", "take sharded_ddp out"),
    ],
)
def test_mistake_in_training_arguments_is_told_once(text: str, key: str, fix: str) -> None:
    found = errors(of_text("args.yaml", text, kind=FileKind.TRAINING_ARGS))
    assert [each.key for each in found] == [key], found
    assert fix in found[0].fix


def test_correcting_a_slip_keeps_what_depends_on_it(tmp_path: Path) -> None:
    """A misspelt stage 3 is no reason to take the offloading out that only stage 3 has."""
    tree = {**PLAIN, "zero_optimization": {"stgae": 3, "offload_param": {"device": "cpu"}}}
    (only,) = fixed_files(of_deepspeed(tree, world_size=4), Asked(world_size=4), folder=tmp_path)
    assert json.loads(only.text)["zero_optimization"] == {"stage": 3, "offload_param": {"device": "cpu"}}


def test_what_cannot_be_corrected_is_told_and_left() -> None:
    """Without its stage ZeRO would be off, which nobody has asked for."""
    found = of_deepspeed(zero(stage="three"), world_size=4)
    assert fixed_files(found, Asked(world_size=4), folder=None) == []
    assert [each.key for each in left_to_do(found, Asked(world_size=4))] == ["zero_optimization.stage"]


def test_former_names_are_told_as_the_file_has_to_have_them() -> None:
    old = of_deepspeed(zero(stage=3, stage3_gather_fp16_weights_on_model_save=True), world_size=4)
    told = [each.fix for each in old.findings if each.severity is Severity.WARNING]
    assert told == ["write zero_optimization.stage3_gather_16bit_weights_on_model_save"]
    yaml = of_yaml("distributed_type: MULTI_GPU\nnum_processes: 2\nfp16: true\ndynamo_backend: 'NO'\n")
    told = [each.fix for each in yaml.findings if each.severity is Severity.WARNING]
    assert told == ["write mixed_precision: 'fp16'", "take dynamo_backend out"]


def test_trainer_and_deepspeed_file_must_agree(tmp_path: Path) -> None:
    found = of_files(
        tmp_path,
        {
            "args.json": '{"output_dir": "o", "per_device_train_batch_size": 4, "learning_rate": 1e-4, "bf16": true, '
            '"deepspeed": "ds.json"}',
            "ds.json": '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto", "bf16": '
            '{"enabled": "auto"}, "zero_optimization": {"stage": 2}, "train_batch_size": "auto", '
            '"gradient_clipping": "auto"}',
        },
        world_size=8,
    )
    assert found.launcher is Launcher.TRAINER
    assert [each.key for each in errors(found)] == ["train_micro_batch_size_per_gpu"]
    assert found.deepspeed is not None
    assert found.deepspeed["bf16"]["enabled"] is True
    assert found.deepspeed["gradient_clipping"] == 1.0


def test_value_that_stands_somewhere_comes_before_a_default(tmp_path: Path) -> None:
    """A learning rate of the DeepSpeed file is not given up for the Trainer's default of 5e-5."""
    tree = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "train_micro_batch_size_per_gpu": "auto"}
    files = {
        "args.json": json.dumps({"output_dir": "o", "bf16": True, "deepspeed": "ds.json"}),
        "ds.json": json.dumps({**tree, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}),
    }
    found = of_files(tmp_path, files, world_size=2)
    assert [(Path(each.file).name, each.key) for each in errors(found)] == [("args.json", "learning_rate")]
    (fixed,) = fixed_files(found, Asked(world_size=2), folder=tmp_path / "fixed")
    assert json.loads(fixed.text)["learning_rate"] == 1e-4


def test_trainer_and_flat_keys_must_agree(tmp_path: Path) -> None:
    """What transformers 5.24 itself counts as mismatches under accelerate launch with these settings."""
    lines = ("zero_stage: 3", "zero3_init_flag: true", "gradient_accumulation_steps: 2", "gradient_clipping: 0.5")
    arguments = {"output_dir": "o", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    files = {"a.yaml": flat(*lines), "args.json": json.dumps({**arguments, "fp16": True})}
    found = of_files(tmp_path, files)
    keys = ["deepspeed_config.gradient_accumulation_steps", "max_grad_norm"]
    assert [each.key for each in errors(found)] == keys
    assert found.deepspeed is not None
    assert found.deepspeed["fp16"]["enabled"] is True
    assert found.deepspeed["bf16"]["enabled"] is False
    same = {**arguments, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5}
    found = of_files(tmp_path, {**files, "args.json": json.dumps(same)})
    assert [(Path(each.file).name, each.key) for each in errors(found)] == [("args.json", "bf16")]
    assert errors(of_files(tmp_path, {**files, "args.json": json.dumps({**same, "bf16": True})})) == []


def test_settings_in_both_files_are_one_finding_that_names_them(tmp_path: Path) -> None:
    found = of_files(
        tmp_path,
        {
            "a.yaml": flat("deepspeed_config_file: ds.json", "zero_stage: 3", "gradient_accumulation_steps: 2"),
            "ds.json": '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}',
        },
    )
    (only,) = errors(found)
    for name in ("zero_stage", "gradient_accumulation_steps", "mixed_precision"):
        assert name in only.key
        assert name in only.fix


def test_json_with_comments_is_taken_by_deepspeed_alone() -> None:
    text = (
        '{\n  // comment\n  "train_micro_batch_size_per_gpu": 1, /* more */\n  "zero_optimization": {"stage": 2,},\n}'
    )
    found = of_text("ds.json", text, kind=FileKind.DEEPSPEED)
    assert errors(found) == []
    assert any("HJSON" in each.message for each in found.findings)


def test_yaml_that_cannot_be_read_is_no_template_for_its_words_in_capitals() -> None:
    (only,) = errors(of_yaml("distributed_type: MULTI_GPU\n\tnum_processes: 2\n"))
    assert "line 2, column 1" in only.message
    assert "placeholder" not in only.message
    (only,) = errors(of_yaml("distributed_type: {{ kind }}\n"))
    assert "kind" in only.fix


def test_batch_size_that_is_no_number_is_told_once() -> None:
    tree = {**PLAIN, "train_micro_batch_size_per_gpu": "four"}
    told = [each.key for each in of_deepspeed(tree, world_size=2).findings if each.severity is not Severity.NOTE]
    assert told == ["train_micro_batch_size_per_gpu"]


def test_key_that_stands_twice_is_an_error() -> None:
    text = '{"train_batch_size": 8, "train_batch_size": 16, "zero_optimization": {"stage": 1}}'
    (only,) = errors(of_text("ds.json", text, kind=FileKind.DEEPSPEED))
    assert only.key == "train_batch_size"
    assert "twice" in only.message


def test_deepspeed_alone_takes_its_default_for_auto_in_zero() -> None:
    """runtime/config_utils.py drops "auto" before the model of a block sees it."""
    found = of_deepspeed(zero(reduce_bucket_size="auto"), world_size=1)
    value = next(each for each in found.values if each.key == "zero_optimization.reduce_bucket_size")
    assert (value.value, value.origin) == (500_000_000, "auto")


def test_buckets_follow_from_the_hidden_size() -> None:
    tree = {**PLAIN, "train_batch_size": "auto", "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}
    found = of_deepspeed(tree, launcher=Launcher.TRAINER, hidden_size=4096)
    assert found.deepspeed is not None
    assert found.deepspeed["zero_optimization"]["reduce_bucket_size"] == 4096 * 4096


def test_sequence_parallel_ranks_do_not_count_for_the_batch() -> None:
    """Two ranks that share a sequence see the same samples: the data-parallel size of four is two."""
    text = flat("zero_stage: 3", "gradient_accumulation_steps: 2", "zero3_init_flag: true") + (
        "parallelism_config:\n  parallelism_config_dp_shard_size: 2\n  parallelism_config_sp_size: 2\n"
    )
    found = of_yaml(text)
    assert errors(found) == []
    assert any("data-parallel size is 2" in each.message for each in found.findings)


def test_nvme_buffer_below_the_largest_tensor_is_an_error() -> None:
    """deepspeedai's own numbers of a 27B model: an embedding of 1,271,398,400 elements, buffers of 1e8."""
    tree = zero(stage=3, offload_param={"device": "nvme", "nvme_path": "/tmp"})
    (only,) = errors(of_deepspeed(tree, world_size=1, largest_parameter=1_271_398_400))
    assert only.key == "zero_optimization.offload_param.buffer_size"
    assert "1,271,398,400" in only.fix
