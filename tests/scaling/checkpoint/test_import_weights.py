"""Folders that Hugging Face's Trainer and accelerate have written, as models and as the start of a run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers
from typer.testing import CliRunner, Result

from scaling.checkpoint.errors import CheckpointError
from scaling.cli import app
from scaling.train import main
from tests.scaling.decisions import TINY_LLAMA, plan_tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

TIED = TINY_LLAMA | {"tie_word_embeddings": True}
ROWS = [{"input_ids": list(range(row, row + 8)), "labels": list(range(row, row + 8))} for row in range(4)]


@pytest.fixture(scope="module", autouse=True)
def _no_launcher() -> Iterator[None]:
    before = dict(os.environ)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(TIED))
    return path


@pytest.fixture(scope="module")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Checkpoints of Trainer (trainer/checkpoint-1) and of accelerate, of one model after a step; and the model."""
    folder = tmp_path_factory.mktemp("theirs")
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(config.parent))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), max_steps=1, save_steps=1, use_cpu=True, report_to=[], learning_rate=0.1
    )
    transformers.Trainer(model=model, args=arguments, train_dataset=ROWS).train()  # type: ignore[arg-type]
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(model)
    accelerator.save_state(str(folder / "state"))
    accelerator.save_state(str(folder / "pickled"), safe_serialization=False)
    accelerator.save_model(prepared, str(folder / "model"), max_shard_size="20KB")
    return folder, model


def run_import(folder: Path, config: Path, out: Path, *more: str) -> Result:
    words = ["checkpoint", "import", str(folder), "--model", str(config), "--out", str(out), *more]
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("name", ["trainer/checkpoint-1", "state", "pickled", "model"])
def test_weights_are_those_of_the_model(name: str, config: Path, trained: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = trained
    result = run_import(folder / name, config, tmp_path / "model", "--max-shard-size", "20KB")
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 2
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert opened.lm_head.weight is opened.model.embed_tokens.weight
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in opened.state_dict().items())


def test_a_run_starts_from_a_checkpoint_of_trainer(trained: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = trained
    source = folder / "trainer" / "checkpoint-1"
    plan = plan_tiny(tmp_path / "plan", "ddp", world_size=1, config=TIED)
    decision = json.loads(plan.read_text()) | {"model": str(source)}
    plan.write_text(json.dumps(decision))
    flags = ["--steps", 1, "--learning-rate", 1e-30, "--measure-steps", 0, "--init", "pretrained"]
    assert main([str(each) for each in ["--plan", plan, "--out", tmp_path / "run", *flags]]) == 0
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")
    wanted = model.state_dict()
    # A learning rate of nothing leaves what the run has started from.
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in opened.state_dict().items())


def test_shards_of_torch_distributed_checkpoint_are_named_with_what_to_do(config: Path, tmp_path: Path) -> None:
    (tmp_path / "saved" / "pytorch_model_fsdp_0").mkdir(parents=True)
    result = run_import(tmp_path / "saved", config, tmp_path / "model")
    assert isinstance(result.exception, CheckpointError)
    assert "accelerate merge-weights" in str(result.exception)


def test_a_missing_and_a_damaged_file_are_named(config: Path, trained: tuple[Path, Any], tmp_path: Path) -> None:
    folder = shutil.copytree(trained[0] / "model", tmp_path / "copy")
    path = sorted(folder.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:20])
    for _ in range(2):
        result = run_import(folder, config, tmp_path / "model")
        assert isinstance(result.exception, CheckpointError)
        assert f"cannot read {path}" in str(result.exception)
        path.unlink(missing_ok=True)


def test_a_size_that_is_none_is_told(config: Path, trained: tuple[Path, Any], tmp_path: Path) -> None:
    result = run_import(trained[0] / "state", config, tmp_path / "model", "--max-shard-size", "much")
    assert "'much' is no size; give a number above zero and a unit" in str(result.exception)
