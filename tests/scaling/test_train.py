"""Bad input to scaling.train: one clear line, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.train import main
from tests.scaling.decisions import TINY_LLAMA, plan_tiny


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # where tokens are kept


def refused(capfd: pytest.CaptureFixture[str], *flags: object) -> str:
    """Return the one line that the flags are refused with."""
    assert main([str(flag) for flag in flags]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, captured.err
    assert "Traceback" not in captured.err
    return errors[0]


def flags_for(folder: Path, plan: Path) -> list[object]:
    return ["--plan", plan, "--out", folder / "run", "--steps", "2"]


def test_unknown_flag_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert "did you mean --steps?" in refused(capfd, "--step", 3)


def test_a_model_of_another_size_is_refused_before_data_are_read(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = plan_tiny(tmp_path / "plan", "ddp", world_size=1)
    content = json.loads(plan.read_text())
    plan.write_text(json.dumps(content | {"model": "gpt2-demo"}))
    line = refused(capfd, *flags_for(tmp_path, plan), "--data", tmp_path / "there-are-no-such-data.txt")
    assert "model gpt2-demo has num_params=" in line
    assert f"but the plan was made for num_params={content['num_params']}; plan again" in line


def test_another_world_size_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path / "plan", "zero2", world_size=4)
    line = refused(capfd, *flags_for(tmp_path, plan))
    assert "the plan is for gpus=4, but world_size=1 processes were started" in line
    assert not (tmp_path / "run").exists()


def test_a_plan_for_gpus_is_refused_without_them(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path / "plan", "ddp", world_size=1)
    plan.write_text(plan.read_text().replace('"name": "cpu"', '"name": "A100-80GB-SXM"'))
    line = refused(capfd, *flags_for(tmp_path, plan))
    assert "gpu=A100-80GB-SXM" in line
    assert "0 CUDA devices" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no file or folder"),
        ("", "no text"),
        ("too short", "seq_len=64 is longer than the training data of"),
        ("x" * 300, "global_batch_size=8 is more than the data"),
    ],
)
def test_data_that_do_not_do_are_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, message: str
) -> None:
    plan = plan_tiny(tmp_path / "plan", "ddp", world_size=1)
    data = tmp_path / "data.txt"
    if content is not None:
        data.write_text(content)
    assert message in refused(capfd, *flags_for(tmp_path, plan), "--data", data)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_larger_than_the_model_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path / "plan", "ddp", world_size=1, config={**TINY_LLAMA, "vocab_size": 128})
    data = tmp_path / "data.txt"
    data.write_text("x" * 3000)
    line = refused(capfd, *flags_for(tmp_path, plan), "--data", data)
    assert "tokenizer=bytes has ids up to 258" in line
    assert "vocab_size=128" in line


def test_a_folder_in_use_is_refused_and_left_alone(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path / "plan", "ddp", world_size=1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    assert "is not empty (notes)" in refused(capfd, *flags_for(tmp_path, plan))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes"]


def test_the_plan_and_its_model_are_checked_before_the_folder(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = plan_tiny(tmp_path / "plan", "ddp", world_size=1)
    plan.write_text(plan.read_text().replace('"seq_len": 64', '"seq_len": 500'))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    assert "seq_len=500 is longer than the 128 positions" in refused(capfd, *flags_for(tmp_path, plan))


def test_a_broken_launch_is_refused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert "the environment has RANK but not" in refused(capfd, *flags_for(tmp_path, tmp_path / "plan.json"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, None),  # torch 2.9's name for the same; both must not differ
    ],
)
def test_the_allocator_is_told_to_grow_segments_before_torch_is_imported(
    given: dict[str, str], expected: str | None
) -> None:
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    code = "import os, sys, scaling.train; print(os.environ.get('PYTORCH_CUDA_ALLOC_CONF'), 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(expected), "False"]
