"""The installed DeepSpeed, accelerate and transformers as the authority."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.explain_configs import REFERENCE, explained, manifest
from scaling.explain.explanation import Asked, explain
from scaling.explain.findings import Severity, Topic
from scaling.explain.fixing import fixed_files, write_fixed
from scaling.explain.generate import TABLES
from scaling.explain.key_table import shipped_table
from scaling.explain.sources import FileKind, load_sources
from scaling.explain.tree import leaves, put
from strategies.emit.files import write_plan
from tests.scaling.decisions import toy_decision
from tests.scaling.explain.cases import errors, of_deepspeed, of_yaml
from tests.scaling.explain.readers import as_handed_over, plugin_of, refused_by_accelerate, refused_by_deepspeed

pytestmark = pytest.mark.deepspeed

DEEPSPEED = [row for row in manifest() if row["file"].startswith("deepspeed/") and row["status"] != "invalid-json"]
ACCELERATE = [row for row in manifest() if row["file"].startswith("accelerate/")]
NOT_READ_YET = (Topic.CONTRADICTION, Topic.WILL_FAIL, Topic.WRONG_TYPE)
"""What shows only once the engine is built: offloading at the wrong stage, the optimizer under ZeRO."""


@pytest.mark.parametrize("package", TABLES)
def test_key_table_matches_the_installed_package(package: str) -> None:
    shipped = json.loads((resources.files("scaling.explain") / "tables" / f"{package}.json").read_text())
    assert json.loads(json.dumps(TABLES[package]())) == shipped


@pytest.mark.parametrize("row", DEEPSPEED, ids=lambda row: row["file"])
def test_what_deepspeed_refuses_is_an_error(row: dict[str, str]) -> None:
    found = explained(row)
    own = next((each.world_size for each in found.findings if each.topic is Topic.ONE_WORLD), None)
    refused = refused_by_deepspeed(as_handed_over(found), ranks=found.world_size or own or 1)
    told = errors(found)
    if refused:
        assert told, refused
    if not refused:
        assert [each for each in told if each.topic not in NOT_READ_YET] == []


@pytest.mark.parametrize("row", ACCELERATE, ids=lambda row: row["file"])
def test_what_accelerate_refuses_is_an_error(row: dict[str, str]) -> None:
    refused = refused_by_accelerate(REFERENCE / row["file"])
    told = errors(explained(row))
    assert bool(refused) == bool(told), (refused, told)


POOL: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 5, 0.5, 1.5, 1e12, "true", "No", "3", "1e5", "cpu", "CPU", "nvme", "none", "x",
    "", [], {}, [1], "fp16", "bf16",
]  # fmt: skip
STRICT = sorted(
    path
    for path, key in shipped_table("deepspeed").keys.items()
    if any(key.block == block or key.block.startswith(f"{block}.") for block in shipped_table("deepspeed").strict)
    and key.deprecated_for is None
)


@pytest.mark.parametrize("block", sorted({path.rpartition(".")[0] for path in STRICT}))
def test_every_value_is_refused_where_pydantic_refuses_it(block: str) -> None:
    for path in (path for path in STRICT if path.rpartition(".")[0] == block):
        for value in POOL:
            tree: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
            put(tree, path, value)
            refused = refused_by_deepspeed(tree)
            told = [each.topic for each in errors(of_deepspeed(tree, world_size=1)) if each.topic != Topic.WILL_FAIL]
            if refused:
                assert told, (tree, refused)
            else:
                assert set(told) <= {Topic.CONTRADICTION}, (tree, told)


NAMED_BY_ISSUE_936 = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}'


@pytest.mark.parametrize("row", [*DEEPSPEED, *ACCELERATE], ids=lambda row: row["file"])
def test_corrected_file_is_taken_and_needs_no_more_correction(
    row: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "issue_936_ds_config.json").write_text(NAMED_BY_ISSUE_936)
    asked = Asked(world_size=None if row["file"].startswith("accelerate/") else 1)
    found = explain(load_sources([str(REFERENCE / row["file"])]), asked)
    written = fixed_files(found, asked, folder=tmp_path / "fixed")
    write_fixed(written, overwrite=False)
    paths = [each.path for each in written if each.original] or [REFERENCE / row["file"]]
    again = explain(load_sources([str(path) for path in paths]), asked)
    assert [each for each in again.findings if each.severity is Severity.ERROR] == []
    assert fixed_files(again, asked, folder=tmp_path / "fixed") == []
    if row["file"].startswith("accelerate/"):
        assert refused_by_accelerate(paths[0]) is None
    else:
        assert refused_by_deepspeed(as_handed_over(again)) is None


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
def test_files_of_a_plan_have_no_mistake_and_stay_as_they_are(strategy: str, tmp_path: Path) -> None:
    write_plan(toy_decision(strategy, world_size=4, accumulation=2), folder=tmp_path)
    asked = Asked()
    found = explain(load_sources([str(tmp_path / "accelerate.yaml")]), asked)
    assert [each for each in found.findings if each.severity is not Severity.NOTE] == []
    assert fixed_files(found, asked, folder=tmp_path) == []
    assert refused_by_accelerate(tmp_path / "accelerate.yaml") is None
    if strategy != "ddp":
        assert found.sources.of(FileKind.DEEPSPEED) is not None
        alone = explain(load_sources([str(tmp_path / "deepspeed.json")]), Asked(world_size=4))
        assert alone.deepspeed == json.loads((tmp_path / "deepspeed.json").read_text())
        assert refused_by_deepspeed(alone.deepspeed or {}, ranks=4) is None


LOOKED_AT = (
    *("compute_environment", "distributed_type", "mixed_precision", "main_process_port", "num_processes"),
    *(
        path
        for path in shipped_table("accelerate").keys
        if path.startswith(("deepspeed_config.zero", "deepspeed_config.grad"))
    ),
    *("deepspeed_config.offload_optimizer_device", "deepspeed_config.offload_param_device"),
)
RUN = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_machines": 1, "num_processes": 2}


@pytest.mark.parametrize("path", LOOKED_AT)
def test_every_value_that_accelerate_refuses_is_an_error(path: str, tmp_path: Path) -> None:
    for value in [*POOL, "auto", "no", "NO", 8]:
        tree: dict[str, Any] = {**RUN, "deepspeed_config": {"zero_stage": 2}}
        put(tree, path, value)
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(tree))
        if refused := refused_by_accelerate(tmp_path / "a.yaml"):
            assert errors(of_yaml(yaml.safe_dump(tree))), (value, refused)


FLAT = ("issue_302_none_upper", "lmflow_dsz3", "swift_multinode_z3", "trl_ulysses", "trl_zero2")


@pytest.mark.parametrize("name", FLAT)
def test_flat_keys_become_what_accelerate_makes_of_them(name: str) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    path = REFERENCE / "accelerate" / f"{name}.yaml"
    made = plugin_of(load_config_from_file(str(path))).deepspeed_config
    ours = explain(load_sources([str(path)]), Asked()).deepspeed or {}
    del made["steps_per_print"]  # infinity; told as a value of the launcher
    left = {key: "auto" for key in ("train_batch_size", "train_micro_batch_size_per_gpu")}
    for key in ("gradient_accumulation_steps", "gradient_clipping"):  # filled in by prepare(), which comes later
        if made[key] == "auto":
            made[key] = ours[key]
    assert ours == made | left


WITH_AUTO = [row for row in DEEPSPEED if "auto" in (REFERENCE / row["file"]).read_text() and row["status"] == "valid"]


@pytest.mark.parametrize("row", WITH_AUTO, ids=lambda row: row["file"])
def test_auto_becomes_what_the_trainer_makes_of_it(row: dict[str, str], tmp_path: Path) -> None:
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    given = {
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 5,
        "learning_rate": 3e-4,
        "adam_beta2": 0.9,
    }
    more = {"weight_decay": 0.2, "adam_epsilon": 1e-7, "max_grad_norm": 0.7, "bf16": True, "use_cpu": True}
    arguments = TrainingArguments(output_dir=str(tmp_path), **given, **more)
    theirs = HfTrainerDeepSpeedConfig(json.loads((REFERENCE / row["file"]).read_text()))
    theirs.trainer_config_process(arguments)
    (tmp_path / "args.json").write_text(json.dumps({"output_dir": "o", **given, **more}))
    sources = load_sources([str(tmp_path / "args.json"), str(REFERENCE / row["file"])])
    ours = explain(sources, Asked(world_size=1)).deepspeed or {}
    filled = dict(leaves(theirs.config))
    assert {path: value for path, value in leaves(ours) if path in filled} == filled  # more follows later, in DeepSpeed


def test_lost_nvme_path_reaches_deepspeed_in_the_corrected_files(tmp_path: Path) -> None:
    """accelerate 1.15 loses it from the YAML: its plugin says "none"."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 3\n"
        "  offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /local_nvme\n  zero3_init_flag: true\n"
    )
    from accelerate.commands.config.config_args import load_config_from_file

    lost = plugin_of(load_config_from_file(str(path))).deepspeed_config["zero_optimization"]["offload_optimizer"]
    assert lost["nvme_path"] == "none"
    found = explain(load_sources([str(path)]), Asked())
    write_fixed(fixed_files(found, Asked(), folder=tmp_path / "out"), overwrite=False)
    plugin = plugin_of(load_config_from_file(str(tmp_path / "out" / "a.yaml")))
    assert plugin.deepspeed_config["zero_optimization"]["offload_optimizer"]["nvme_path"] == "/local_nvme"
    assert plugin.deepspeed_config["bf16"]["enabled"] is True


def test_scheduler_parameters_match_the_installed_deepspeed() -> None:
    import inspect

    from deepspeed.runtime import lr_schedules

    from scaling.explain.deepspeed_parts_rules import SCHEDULERS

    for name in lr_schedules.VALID_LR_SCHEDULES:
        known = set(inspect.signature(getattr(lr_schedules, name)).parameters) - {"optimizer"}
        assert set(SCHEDULERS[name]) == known


def test_optimizer_parameters_have_all_of_the_installed_ones() -> None:
    import inspect

    import torch
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion

    from scaling.explain.deepspeed_parts_rules import PARAMETERS

    ours = (FusedAdam, DeepSpeedCPUAdam, FusedLamb, FusedLion, DeepSpeedCPULion, DeepSpeedCPUAdagrad)
    for optimizer in (*ours, torch.optim.AdamW, torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD):
        known = set(inspect.signature(optimizer).parameters) - {"params", "model_params"}
        assert known <= set(PARAMETERS), optimizer


def test_former_training_arguments_are_unknown_to_the_installed_transformers() -> None:
    from scaling.explain.history import TRAINER_REMOVED, TRAINER_RENAMED

    known = set(shipped_table("transformers").keys)
    assert not (set(TRAINER_RENAMED) | set(TRAINER_REMOVED)) & known
    assert set(TRAINER_RENAMED.values()) <= known
