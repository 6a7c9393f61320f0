"""Corrected files of each kind train: three steps on one CPU rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scaling.explain.explanation import Asked, explain
from scaling.explain.fixing import fixed_files, write_fixed
from scaling.explain.sources import load_sources
from scaling.ports import free_port
from tests.scaling.launching import BIN, TORCHRUN, succeed

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

PROGRAM = ["-m", "tests.scaling.explain.three_steps"]
DEEPSPEED = """{
  // of 2020, with a typo, both precisions and three sizes that disagree
  "train_batch_size": 1, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
  "fp16": {"enabled": true}, "bf16": {"enabled": "true"}, "gradient_cliping": 1.0,
  "zero_allow_untested_optimizer": true, "zero_force_ds_cpu_optimizer": false,
  "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}, "reduce_bucket_size": "1000"},
}"""
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_machines: 1
num_processes: 1
mixed_precision: no
deepspeed_config:
  zero_stgae: 1
"""
ARGUMENTS = {
    "output_dir": "OUT", "max_steps": 3, "logging_steps": 1, "per_device_train_batch_size": 2, "use_cpu": True,
    "evaluation_strategy": "no", "save_strategy": "no", "report_to": "none", "fp16": True, "bf16": True,
    "disable_tqdm": True, "remove_unused_columns": False, "learning_rat": 0.1,
}  # fmt: skip


def corrected(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    asked = Asked(world_size=1)
    found = explain(load_sources([str(folder / name)]), asked)
    assert any(each.severity == "error" for each in found.findings)
    write_fixed(fixed_files(found, asked, folder=folder / "fixed"), overwrite=False)
    return folder / "fixed" / name


def losses(printed: str) -> list[float]:
    (line,) = [each for each in printed.splitlines() if each.startswith("losses ")]
    return list(json.loads(line.removeprefix("losses ")))


def test_deepspeed_file(tmp_path: Path) -> None:
    path = corrected(tmp_path, "ds.json", DEEPSPEED)
    assert json.loads(path.read_text())["gradient_clipping"] == 1.0
    assert len(losses(succeed([*TORCHRUN, "1", *PROGRAM, "deepspeed", path]))) == 3


def test_accelerate_file(tmp_path: Path) -> None:
    path = corrected(tmp_path, "a.yaml", ACCELERATE)
    launch = [BIN / "accelerate", "launch", "--config_file", path, "--main_process_port", str(free_port())]
    assert len(losses(succeed([*launch, *PROGRAM, "accelerate", path]))) == 3


def test_training_arguments(tmp_path: Path) -> None:
    text = json.dumps(ARGUMENTS).replace("OUT", str(tmp_path / "out"))
    path = corrected(tmp_path, "args.json", text)
    found = losses(succeed([BIN / "python", *PROGRAM, "training-args", path]))
    assert len(found) == 3
