"""``scaling checkpoint`` on checkpoints of a real run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

import scaling.checkpoint.retention
from scaling.checkpoint.errors import CheckpointError
from scaling.cli import app
from scaling.train import main
from strategies.job import Precision
from tests.scaling.checkpoint.alone import damaged
from tests.scaling.decisions import TINY_LLAMA, plan_tiny
from tests.scaling.launching import run_cli

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module", params=[Precision.FP32, Precision.BF16], ids=str)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The out folder of a run of a tied model with three checkpoints."""
    folder = tmp_path_factory.mktemp("cli")
    before = dict(os.environ)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    config = TINY_LLAMA | {"tie_word_embeddings": True}
    plan = plan_tiny(folder / "plan", "ddp", world_size=1, config=config, precision=request.param)
    flags = ["--steps", 3, "--save-every", 1, "--keep-last", 0, "--eval-every", 1, "--eval-batches", 1]
    assert main([str(each) for each in ["--plan", plan, "--out", folder / "run", "--measure-steps", 0, *flags]]) == 0
    yield folder / "run"
    os.environ.clear()
    os.environ.update(before)


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, words)])


def test_inspect_tells_step_and_sizes(run: Path) -> None:
    found = json.loads(call("inspect", run, "--json").stdout)
    assert [each["step"] for each in found] == [3, 2, 1]
    num_parameters = 288 * 32 + 2 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64 + 2 * 32) + 32  # by hand, from the config
    assert found[0]["num_parameters"] == num_parameters
    # fp32 masters and two moments, 4 bytes each (Rajbhandari et al. 2020, section 3.1); one count of steps a tensor.
    kinds = found[0]["bytes_by_kind"]
    assert [kinds[kind] for kind in ("weight", "exp_avg", "exp_avg_sq")] == [4 * num_parameters] * 3
    assert found[0]["eval_loss"] < found[2]["eval_loss"]
    assert found[0]["problem"] is None
    assert f"{num_parameters:,} parameters" in call("inspect", run / "checkpoints" / "step-00000002").stdout


def test_verify_reads_every_byte_and_inspect_does_not(run: Path) -> None:
    assert call("verify", run).exit_code == 0
    with damaged(run / "checkpoints" / "step-00000002" / "rank00000-000.safetensors"):
        assert call("inspect", run).exit_code == 0
        result = call("verify", run)
        assert result.exit_code == 2
        assert "step-00000002: cannot be gone on from" in result.stdout
        assert "rank00000-000.safetensors is damaged" in result.stdout


def test_export_is_the_model_that_the_run_left(run: Path, tmp_path: Path) -> None:
    result = call("export", run, "--out", tmp_path / "model")
    assert result.exit_code == 0, result.output
    exported, left = (load_file(folder / "model.safetensors") for folder in (tmp_path / "model", run / "final"))
    assert exported.keys() == left.keys()
    assert "lm_head.weight" not in exported
    for name, tensor in left.items():
        assert exported[name].dtype == tensor.dtype
        assert torch.equal(exported[name], tensor)
    models = [transformers.AutoModelForCausalLM.from_pretrained(each) for each in (tmp_path / "model", run / "final")]
    ids = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(models[0](ids).logits, models[1](ids).logits)
    assert models[0].lm_head.weight is models[0].model.embed_tokens.weight


def test_export_takes_the_latest_whole_one(run: Path, tmp_path: Path) -> None:
    with damaged(run / "checkpoints" / "step-00000003" / "rank00000-000.safetensors"):
        result = call("export", run, "--out", tmp_path / "model", "--json")
    assert json.loads(result.stdout)["checkpoint"].endswith("step-00000002")


def test_a_folder_without_checkpoints_is_said_to_be_one(tmp_path: Path) -> None:
    result = call("inspect", tmp_path)
    assert isinstance(result.exception, CheckpointError)
    assert "is no checkpoint and has none in it" in str(result.exception)


def _binary(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(bytes(range(256)))


def _deep(folder: Path) -> None:
    (folder / "manifest.json").write_text("[" * 100_000)


def _forged(manifest: object) -> Callable[[Path], None]:
    """Return what writes a manifest with a checksum that is right."""

    def write(folder: Path) -> None:
        checksum = hashlib.sha256((json.dumps(manifest, indent=2) + "\n").encode()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps({"sha256": checksum, "manifest": manifest}))

    return write


def _of_unknown_format(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text())["manifest"]
    content["tensors"][0]["dtype"] = "float1"
    _forged(content)(folder)


def _loop(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to(folder / "manifest.json")


RUINED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "has no manifest.json"),
    "a manifest of bytes": (_binary, "cannot read"),
    "a manifest of brackets": (_deep, "cannot read"),
    "a manifest that is a list": (_forged([]), "cannot read"),
    "a manifest of another format": (_forged({"format": "x"}), "has format=x"),
    "a manifest of little": (_forged({"format": 1}), "take another checkpoint"),
    "a tensor of no format": (_of_unknown_format, "is in the format 'float1'"),
    "a manifest that points at itself": (_loop, "has no manifest.json"),
    "a folder for a file": (
        lambda folder: ((folder / "plan.json").unlink(), (folder / "plan.json").mkdir()),  # type: ignore[dict-item, func-returns-value]
        "plan.json has",
    ),
}


@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize("name", RUINED)
def test_what_is_wrong_with_a_checkpoint_is_a_line(run: Path, tmp_path: Path, name: str, command: str) -> None:
    ruin, message = RUINED[name]
    folder = shutil.copytree(run / "checkpoints" / "step-00000001", tmp_path / "step-00000001")
    ruin(folder)
    result = call(command, folder)
    assert result.exit_code == 2, result.output
    assert result.stdout.startswith(f"{folder}: cannot be gone on from: ")
    assert message in result.stdout
    assert isinstance(result.exception, SystemExit)
    # The others in the same folder are told all the same.
    shutil.copytree(run / "checkpoints" / "step-00000002", tmp_path / "step-00000002")
    assert "step-00000002: step 2" in call(command, tmp_path).stdout


NOT_CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "nothing": lambda folder: folder / "absent",
    "nothing with the name of one": lambda folder: folder / "step-00000009",
    "a file": lambda folder: folder / "file",
    "a link to itself": lambda folder: folder / "loop",
    "an empty folder": lambda folder: folder,
}


@pytest.mark.parametrize("name", NOT_CHECKPOINTS)
@pytest.mark.parametrize("command", ["inspect", "verify", "prune", "export"])
def test_what_is_no_checkpoint_is_said_to_be_none(
    tmp_path: Path, name: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    words = ["checkpoint", command, str(NOT_CHECKPOINTS[name](tmp_path))]
    assert run_cli(monkeypatch, [*words, *(["--out", str(tmp_path / "out")] if command == "export" else [])]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "is no checkpoint and has none in it" in said


def test_prune_of_one_checkpoint_is_refused(run: Path) -> None:
    result = call("prune", run / "checkpoints" / "step-00000002")
    assert f"prune chooses among several; give {run / 'checkpoints'}" in str(result.exception)
    assert len(list((run / "checkpoints").iterdir())) == 3


def test_what_prune_may_not_remove_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(scaling.checkpoint.retention, "remove_checkpoint", refuse)
    result = call("prune", run, "--keep-last", 2)
    assert result.exit_code == 2
    assert result.stdout == f"could not remove {run / 'checkpoints' / 'step-00000001'}\n"


def test_a_folder_that_is_there_is_refused_before_the_checkpoint_is_read(run: Path) -> None:
    with damaged(run / "checkpoints" / "step-00000002" / "rank00000-000.safetensors"):
        result = call("export", run / "checkpoints" / "step-00000002", "--out", run)
    assert str(result.exception) == f"{run} already exists; move it away"


def test_prune_keeps_the_last_and_the_best(run: Path) -> None:  # the last test: it removes
    result = call("prune", run, "--keep-last", 1, "--keep-best", 1, "--json")
    assert [Path(each).name for each in json.loads(result.stdout)] == ["step-00000002", "step-00000001"]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000003"]
