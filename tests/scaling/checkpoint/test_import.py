"""Checkpoints that DeepSpeed itself has written, on two ranks, as model folders."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from typer.testing import CliRunner

from benchmarks.parity_models import Demo, planner, training
from scaling.checkpoint.errors import CheckpointError
from scaling.cli import app
from scaling.local_ranks import run_ranks
from scaling.loop import train_step
from scaling.parity.ranks import make_engine
from scaling.parity.variants import VARIANTS
from strategies.job import Job, Precision
from tests.scaling.decisions import TINY_LLAMA

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

CASES = {"zero1": Precision.FP32, "zero2": Precision.BF16, "zero3": Precision.BF16}


def save_as_deepspeed_does(config: str, folder: Path, device: torch.device) -> dict[str, dict[str, torch.Tensor]]:
    """Train a step under each stage and save it; return the fp32 weights by DeepSpeed's own interface."""
    from deepspeed.utils import safe_get_full_fp32_param

    weights = {}
    for way, precision in CASES.items():
        demo = Demo(name="llama", config=config)
        plan = planner(demo, Job(seq_len=32, global_batch_size=4, precision=precision), num_ranks=dist.get_world_size())
        decision = plan(replace(VARIANTS[way], micro_batch_size=1))
        engine = cast(
            Any,
            make_engine(demo.model(decision), decision, config=training(steps=2, learning_rate=1e-2), device=device),
        )
        engine.set_learning_rate(1e-2)
        train_step(engine, demo.data(decision).micro_batches(0, rank=engine.rank, world_size=2))
        engine._engine.save_checkpoint(str(folder / way))
        weights[way] = {name: safe_get_full_fp32_param(each) for name, each in engine.model.named_parameters()}
        engine.close()
    return weights


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(TINY_LLAMA | {"tie_word_embeddings": True}))
    return path


@pytest.fixture(scope="module")
def saved(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("deepspeed")
    weights = run_ranks(partial(save_as_deepspeed_does, str(config), folder), world_size=2, timeout_s=120)
    return folder, weights[0]


@pytest.mark.parametrize("way", CASES)
def test_weights_are_those_that_deepspeed_tells(
    way: str, config: Path, saved: tuple[Path, dict[str, dict[str, torch.Tensor]]], tmp_path: Path
) -> None:
    folder, weights = saved
    words = ["checkpoint", "import", str(folder / way), "--model", str(config), "--out", str(tmp_path / "model")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    imported = load_file(tmp_path / "model" / "model.safetensors")
    assert imported.keys() == weights[way].keys()
    for name, tensor in imported.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, weights[way][name])


def test_another_model_is_refused_by_name(
    saved: tuple[Path, dict[str, dict[str, torch.Tensor]]], tmp_path: Path
) -> None:
    other = tmp_path / "config.json"
    other.write_text(json.dumps(TINY_LLAMA | {"hidden_size": 64}))
    words = ["checkpoint", "import", str(saved[0] / "zero2"), "--model", str(other), "--out", str(tmp_path / "model")]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, CheckpointError)
    assert "has model.embed_tokens.weight of shape (288, 32)" in str(result.exception)
    assert "(288, 64)" in str(result.exception)


def test_a_folder_that_is_none_is_said_to_be_none(config: Path, tmp_path: Path) -> None:
    words = ["checkpoint", "import", str(tmp_path), "--model", str(config), "--out", str(tmp_path / "model")]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, CheckpointError)
    assert "is no checkpoint that DeepSpeed can read" in str(result.exception)
