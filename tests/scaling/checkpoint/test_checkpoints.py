"""Saving, finding, refusing and keeping checkpoints, in one process."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

import scaling.checkpoint.retention
from scaling.checkpoint.errors import CheckpointError, SaveFailed
from scaling.checkpoint.inspection import checkpoints_at
from scaling.checkpoint.manifest import MANIFEST_FILE, read_manifest
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.names import find_checkpoints
from scaling.checkpoint.reader import CheckpointReader
from scaling.checkpoint.retention import prune
from strategies.job import Precision
from tests.scaling.checkpoint.alone import (
    FACTS,
    checkpoints,
    flip_bit,
    numbers,
    same,
    save,
    start_engine,
    state,
    train,
)
from tests.scaling.full_disk import file_size_limit

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("_one_rank")]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.BF16_PURE, Precision.FP16])
def test_a_restored_engine_trains_on_to_the_same_bits(tmp_path: Path, precision: Precision) -> None:
    engine = start_engine(precision=precision)
    train(engine, 3)
    checkpoints(tmp_path).save(engine, state(3))
    weights = {name: tensor.clone() for name, tensor in engine.gathered_parameters()}
    train(engine, 2)
    other = start_engine(precision=precision)
    train(other, 1)  # what is there is replaced
    found = checkpoints(tmp_path).load_latest(other)
    assert found == state(3)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in other.gathered_parameters())
    train(other, 2)
    assert same(numbers(other), numbers(engine))
    assert other.update_state == engine.update_state


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    import random

    import numpy as np

    engine = start_engine()
    checkpoints(tmp_path).save(engine, state(0))
    drawn = (torch.rand(3).tolist(), random.random(), float(np.random.random()))
    checkpoints(tmp_path).load_latest(engine)
    assert (torch.rand(3).tolist(), random.random(), float(np.random.random())) == drawn


def test_a_checkpoint_before_the_first_step_is_one(tmp_path: Path) -> None:
    engine = start_engine()
    checkpoints(tmp_path).save(engine, state(0))
    other = start_engine()
    assert checkpoints(tmp_path).load_latest(other) == state(0)
    train(engine, 2)
    train(other, 2)
    assert same(numbers(engine), numbers(other))


def test_the_latest_is_taken_and_an_empty_folder_has_none(tmp_path: Path) -> None:
    engine = start_engine()
    assert checkpoints(tmp_path).load_latest(engine) is None
    saved = checkpoints(tmp_path, keep_last=0)
    for step in (9, 10, 8):
        saved.save(engine, state(step))
    found = checkpoints(tmp_path).load_latest(engine)
    assert found is not None
    assert found.step == 10


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_anew_by_itself(tmp_path: Path) -> None:
    engine = start_engine()
    for step in (1, 2):
        file = save(engine, step, tmp_path) / "rank00000-000.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole, .*00002.*--resume none"):
        checkpoints(tmp_path).load_latest(engine)


def test_the_folder_of_a_run_is_told_from_its_checkpoints(tmp_path: Path) -> None:
    folder = save(start_engine(), 7, tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match=f"give {folder}$"):
        read_manifest(tmp_path / "run")


class Tied(nn.Module):
    """An embedding and a head, one tensor or two equal ones."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight if tied else nn.Parameter(self.embedding.weight.detach().clone())

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        return CausalLMOutput(logits=self.head(self.embedding(input_ids)))


@pytest.mark.parametrize(("tied", "num_copies"), [(True, 1), (False, 2)])
def test_tied_weights_are_kept_once_and_equal_untied_ones_twice(tmp_path: Path, *, tied: bool, num_copies: int) -> None:
    # safetensors #265, transformers #38870, accelerate #2155.
    engine = start_engine(Tied(tied=tied))
    train(engine, 1)
    folder = save(engine, 1, tmp_path)
    with safe_open(folder / "rank00000-000.safetensors", framework="pt") as file:
        kinds = [key.partition("/")[0] for key in file.keys()]  # noqa: SIM118  # no mapping
    assert [kinds.count(kind) for kind in ("weight", "exp_avg", "exp_avg_sq")] == [num_copies] * 3
    model = Tied(tied=tied)
    checkpoints(tmp_path).load_latest(start_engine(model))
    assert (model.head.weight is model.embedding.weight) == tied


def cut(path: Path, num_bytes: int = 1) -> None:
    path.write_bytes(path.read_bytes()[:-num_bytes])


FILE = "rank00000-000.safetensors"
DAMAGES = {
    "a flipped bit in a tensor": (lambda folder: flip_bit(folder / FILE, at=-1), f"{FILE} is damaged"),
    "a flipped bit in a header": (lambda folder: flip_bit(folder / FILE, at=20), f"{FILE} is damaged"),
    "a cut file": (lambda folder: cut(folder / FILE), "was written with"),
    "an absent file": (lambda folder: (folder / FILE).unlink(), f"cannot read .*{FILE}: No such file"),
    "a changed document": (lambda folder: flip_bit(folder / "plan.json", at=0), r"plan\.json is damaged"),
    "a changed manifest": (
        lambda folder: (folder / MANIFEST_FILE).write_text(
            (folder / MANIFEST_FILE).read_text().replace('"step": 2', '"step": 3')
        ),
        r"manifest\.json is damaged",
    ),
    "no manifest": (lambda folder: (folder / MANIFEST_FILE).unlink(), "is no complete checkpoint"),
    "a cut manifest": (lambda folder: cut(folder / MANIFEST_FILE, 2), "cannot read"),
    "a manifest of another kind": (lambda folder: (folder / MANIFEST_FILE).write_text("[]"), "cannot read"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start_engine()
    train(engine, 1)
    saved = checkpoints(tmp_path)
    saved.save(engine, state(1))
    good = numbers(engine)
    train(engine, 1)
    latest = save(engine, 2, tmp_path)
    ruin, message = DAMAGES[name]
    ruin(latest)  # type: ignore[no-untyped-call]
    with pytest.raises(CheckpointError, match=message):
        checkpoints(tmp_path).load(engine, latest)
    assert checkpoints(tmp_path).load_latest(engine) == state(1)
    assert same(numbers(engine), good)
    assert "skipped a checkpoint" in caplog.text
    assert str(latest) in caplog.text


def test_a_later_format_is_named(tmp_path: Path) -> None:
    import hashlib

    folder = save(start_engine(), 1, tmp_path)
    content = json.loads((folder / MANIFEST_FILE).read_text())["manifest"] | {"format": 99}
    checksum = hashlib.sha256((json.dumps(content, indent=2) + "\n").encode()).hexdigest()
    (folder / MANIFEST_FILE).write_text(json.dumps({"sha256": checksum, "manifest": content}))
    with pytest.raises(CheckpointError, match="format=99, this version reads format=1"):
        read_manifest(folder)


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    checkpoints(tmp_path).save(start_engine(Tied(tied=True)), state(1))
    with pytest.raises(CheckpointError, match=r"is of another model: it has no weight head\.weight"):
        checkpoints(tmp_path).load_latest(start_engine(Tied(tied=False)))
    checkpoints(tmp_path).save(start_engine(Tied(tied=False)), state(2))
    with pytest.raises(CheckpointError, match=r"its weight head\.weight is not in the model"):
        checkpoints(tmp_path).load_latest(start_engine(Tied(tied=True)))
    other = Tied(tied=True)
    other.embedding = nn.Embedding(7, 4)
    other.head.weight = other.embedding.weight
    checkpoints(tmp_path).save(start_engine(Tied(tied=True)), state(3))
    with pytest.raises(CheckpointError, match=r"has shape \(6, 4\) and the model's \(7, 4\)"):
        checkpoints(tmp_path).load_latest(start_engine(other))


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    engine = start_engine()
    train(engine, 1)
    checkpoints(tmp_path).save(engine, state(1))
    sgd = start_engine()
    sgd._optimizer = torch.optim.SGD(sgd.model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(CheckpointError, match="is of another optimizer: it has no momentum_buffer"):
        checkpoints(tmp_path).load_latest(sgd)


def test_a_checkpoint_of_other_data_is_refused_with_both_values(tmp_path: Path) -> None:
    checkpoints(tmp_path).save(start_engine(), state(1))
    with pytest.raises(CheckpointError, match=r"data_hash=xyz \(checkpoint: abc\)"):
        checkpoints(tmp_path, replace(FACTS, identity={"data_hash": "xyz"})).load_latest(start_engine())


def test_another_format_of_the_numbers_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = start_engine(precision=Precision.BF16)
    train(engine, 1)
    checkpoints(tmp_path).save(engine, state(1))
    checkpoints(tmp_path).load_latest(start_engine(precision=Precision.BF16_PURE))
    assert "in float32, and this run keeps it in bfloat16" in caplog.text


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    engine = start_engine()
    saved = checkpoints(tmp_path, keep_last=2, keep_best=1)
    for step, eval_loss in enumerate((3.0, 1.0, 2.0, None, 2.5, None), start=1):
        saved.save(engine, state(step, eval_loss))
    assert [path.name for path in find_checkpoints(tmp_path)] == ["step-00000006", "step-00000005", "step-00000002"]
    assert sorted(os.listdir(tmp_path)) == ["step-00000002", "step-00000005", "step-00000006"]


def test_a_step_is_saved_once(tmp_path: Path) -> None:
    engine, saved = start_engine(), checkpoints(tmp_path)
    first = saved.save(engine, state(1))
    assert first is not None
    made = (first / MANIFEST_FILE).stat().st_mtime_ns
    assert saved.save(engine, state(1)) == first
    assert (first / MANIFEST_FILE).stat().st_mtime_ns == made


def test_a_step_that_is_done_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    engine = start_engine()
    train(engine, 1)
    checkpoints(tmp_path).save(engine, state(1))
    train(engine, 1)
    folder = save(engine, 1, tmp_path)
    assert os.listdir(tmp_path) == [folder.name]
    with CheckpointReader(folder) as reader:
        assert float(reader.whole("step", "scorer.weight")) == 2.0


def test_a_full_disk_leaves_the_earlier_one_and_the_run(tmp_path: Path) -> None:
    engine = start_engine(Tied(tied=False))
    train(engine, 1)
    saved = checkpoints(tmp_path)
    saved.save(engine, state(1))
    train(engine, 1)
    with file_size_limit(200), pytest.raises(SaveFailed, match=r"cannot write a checkpoint to .*File too large"):
        saved.save(engine, state(2))
    assert os.listdir(tmp_path) == ["step-00000001"]
    train(engine, 1)
    saved.save(engine, state(3))
    assert checkpoints(tmp_path).load_latest(start_engine(Tied(tied=False))) == state(3)


def test_space_is_asked_for_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=100))
    with pytest.raises(SaveFailed, match=r"needs .* has 100 B free; nothing was written"):
        checkpoints(tmp_path).save(start_engine(), state(1))
    assert os.listdir(tmp_path) == []


def test_a_place_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write a checkpoint to .*Not a directory"):
        checkpoints(tmp_path / "file" / "in").save(start_engine(), state(1))


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder that this process may read and not write: root, who may write everywhere, is nobody for a while."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    os.seteuid(os.getuid())
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_is_named_and_the_earlier_one_stays(as_nobody: Path) -> None:
    folder, engine = as_nobody, start_engine()
    saved = checkpoints(folder)
    saved.save(engine, state(1))
    folder.chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(65534)
    with pytest.raises(SaveFailed, match=r"cannot write a checkpoint to .*Permission denied.*another --out"):
        saved.save(engine, state(2))
    assert os.listdir(folder) == ["step-00000001"]
    assert checkpoints(folder).load_latest(engine) == state(1)


def test_what_cannot_be_removed_stays_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, saved = start_engine(), checkpoints(tmp_path, keep_last=0)
    for step in (1, 2, 3):
        saved.save(engine, state(step))

    def refuse(path: Path) -> None:
        if path.name == "step-00000001":
            raise PermissionError(13, "Permission denied")
        shutil.rmtree(path)

    monkeypatch.setattr(scaling.checkpoint.retention, "remove_checkpoint", refuse)
    pruned = prune(tmp_path, keep_last=1, keep_best=0)
    assert [path.name for path in pruned.removed] == ["step-00000002"]
    assert [path.name for path in pruned.refused] == ["step-00000001"]


def test_a_new_checkpoint_counts_where_older_ones_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(parent: Path) -> list[Path]:
        raise CheckpointError(f"cannot read {parent}: Stale file handle")

    monkeypatch.setattr(scaling.checkpoint.retention, "find_checkpoints", refuse)
    assert checkpoints(tmp_path).save(start_engine(), state(1)) == tmp_path / "step-00000001"
    assert f"older checkpoints stay: cannot read {tmp_path}: Stale file handle" in caplog.text


def test_a_folder_that_may_not_be_read_is_named(as_nobody: Path) -> None:
    as_nobody.chmod(0o000)
    if os.getuid() == 0:
        os.seteuid(65534)
    for look in (find_checkpoints, lambda path: checkpoints_at(path, inside="checkpoints")):
        with pytest.raises(CheckpointError, match=r"cannot read .*run: Permission denied; give a folder that you may"):
            look(as_nobody / "run")
    with pytest.raises(CheckpointError, match=r"cannot read .*manifest\.json: PermissionError: .*denied"):
        read_manifest(as_nobody / "run")


def test_an_error_of_the_system_on_one_rank_is_not_waited_for(tmp_path: Path) -> None:
    def refuse() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(CheckpointError, match=r"the operating system refuses: .*Input/output error"):
        Meeting(timeout_s=60).on_main(refuse)


def test_no_file_is_pickled(tmp_path: Path) -> None:
    folder = save(start_engine(), 1, tmp_path)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
