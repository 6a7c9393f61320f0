"""Checkpoints that DeepSpeed itself has written, on two ranks, as model folders."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from benchmarks.parity_models import Demo, planner, training
from scaling.checkpoint.errors import CheckpointError
from scaling.cli import app
from scaling.engines.deepspeed import import_deepspeed
from scaling.local_ranks import run_ranks
from scaling.loop import train_step
from scaling.parity.ranks import make_engine
from scaling.parity.variants import VARIANTS
from strategies.job import Job, Precision
from tests.scaling.decisions import TINY_LLAMA

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

CASES = {"zero1": Precision.FP32, "zero2": Precision.BF16, "zero3": Precision.BF16}


Weights = dict[str, dict[str, torch.Tensor]]
"""By strategy and name."""


def save_as_deepspeed_does(config: str, folder: Path, device: torch.device) -> Weights:
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
def saved(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weights]:
    folder = tmp_path_factory.mktemp("deepspeed")
    weights = run_ranks(partial(save_as_deepspeed_does, str(config), folder), world_size=2, timeout_s=120)
    return folder, weights[0]


def convert(folder: Path) -> Path:
    """Let DeepSpeed's own converter write the universal checkpoint of one that it has saved."""
    import_deepspeed(torch.device("cpu"))
    from deepspeed.checkpoint.ds_to_universal import main

    step = folder / (folder / "latest").read_text()
    main(
        argparse.Namespace(
            input_folder=str(step),
            output_folder=f"{step}_universal",
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )
    return Path(f"{step}_universal")


def run_import(folder: Path, config: Path, out: Path, *more: str) -> Result:
    words = ["checkpoint", "import", str(folder), "--model", str(config), "--out", str(out), *more]
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("universal", [False, True], ids=["as saved", "universal"])
@pytest.mark.parametrize("way", CASES)
def test_weights_are_those_that_deepspeed_tells(
    way: str, universal: bool, config: Path, saved: tuple[Path, Weights], tmp_path: Path
) -> None:
    folder, weights = saved
    result = run_import(convert(folder / way) if universal else folder / way, config, tmp_path / "model")
    assert result.exit_code == 0, result.output
    assert ("universal" in result.stdout) == universal
    imported = load_file(tmp_path / "model" / "model.safetensors")
    assert imported.keys() == weights[way].keys()
    for name, tensor in imported.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, weights[way][name])


def test_another_model_is_refused_by_name(saved: tuple[Path, Weights], tmp_path: Path) -> None:
    other = tmp_path / "config.json"
    other.write_text(json.dumps(TINY_LLAMA | {"hidden_size": 64}))
    result = run_import(saved[0] / "zero2", other, tmp_path / "model")
    assert isinstance(result.exception, CheckpointError)
    assert "of shape (288, 32), and" in str(result.exception)
    assert "(288, 64)" in str(result.exception)


def test_a_rank_whose_file_is_missing_is_noticed(config: Path, saved: tuple[Path, Weights], tmp_path: Path) -> None:
    folder = shutil.copytree(saved[0] / "zero3", tmp_path / "copy")
    next(folder.glob("*/*zero_pp_rank_1*optim_states.pt")).unlink()
    result = run_import(folder, config, tmp_path / "model")
    assert isinstance(result.exception, CheckpointError)
    assert "has 1 of the 2 files *_optim_states.pt" in str(result.exception)


def test_a_folder_that_is_none_is_said_to_be_none(config: Path, tmp_path: Path) -> None:
    result = run_import(tmp_path, config, tmp_path / "model")
    assert isinstance(result.exception, CheckpointError)
    assert "is no checkpoint that is known here" in str(result.exception)


class Harmful:
    """What an attacker puts into a file of torch.save."""

    def __init__(self, function: Callable[..., Any], *args: str) -> None:
        self._call = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def test_nothing_in_a_file_is_run(config: Path, saved: tuple[Path, Weights], tmp_path: Path) -> None:
    folder = shutil.copytree(saved[0] / "zero1", tmp_path / "copy")
    path = folder / (folder / "latest").read_text() / "mp_rank_00_model_states.pt"
    content, touched = torch.load(path, weights_only=False), tmp_path / "touched"
    torch.save({**content, "harmful": Harmful(open, str(touched), "w")}, path)
    torch.load(path, weights_only=False)
    touched.unlink()  # so it would have worked
    assert run_import(folder, config, tmp_path / "model").exit_code == 0
    torch.save({**content, "harmful": Harmful(os.system, f"touch {touched}")}, path)
    result = run_import(folder, config, tmp_path / "other")
    assert "asks for more than tensors and plain values, which is never given: " in str(result.exception)
    assert "posix.system" in str(result.exception)
    assert not touched.exists()


def test_a_damaged_file_is_named(config: Path, saved: tuple[Path, Weights], tmp_path: Path) -> None:
    folder = shutil.copytree(saved[0] / "zero1", tmp_path / "copy")
    path = folder / (folder / "latest").read_text() / "mp_rank_00_model_states.pt"
    path.write_bytes(path.read_bytes()[:-100])
    result = run_import(folder, config, tmp_path / "model")
    assert isinstance(result.exception, CheckpointError)
    assert f"cannot read {path}" in str(result.exception)
