"""The whole of scaling.train under each launcher: what it writes, prints and leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from scaling.ports import free_port
from scaling.watching.summary import Summary
from strategies.job import Precision
from strategies.learning.run_store import read_runs
from strategies.plan import ActivationCheckpointing
from strategies.serialize import read_json
from tests.scaling.decisions import TINY_LLAMA, plan_tiny
from tests.scaling.launching import BIN, TORCHRUN, start, succeed

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

STEPS = 12
FLAGS = (
    "--steps",
    str(STEPS),
    "--learning-rate",
    "1e-2",
    "--warmup-steps",
    "2",
    "--seed",
    "3",
    "--data",
    "builtin:python",
)
RECORDS = "runs.jsonl"
TIED = {**TINY_LLAMA, "tie_word_embeddings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that ended well."""

    stdout: str
    out: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [record for record in self.metrics if "loss" in record]

    @property
    def summary(self) -> Summary:
        return read_json(Summary, self.out / "summary.json")


def train(head: list[Any], plan: Path, *flags: str) -> Finished:
    out = plan.parent / "run"
    command = [*head, "scaling.train", "--plan", plan, "--out", out, *FLAGS, *flags]
    stdout = succeed(command, environ={"MEMORY_SCALING_RECORDS": str(out.with_name(RECORDS))})
    return Finished(stdout=stdout, out=out)


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    plan = plan_tiny(tmp_path_factory.mktemp("torchrun"), "ddp", world_size=2)
    return train([*TORCHRUN, "2", "-m"], plan, "--eval-every", "8", "--eval-batches", "3")


@pytest.fixture(scope="module")
def by_python(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    plan = plan_tiny(tmp_path_factory.mktemp("python"), "zero1", world_size=1)
    return train([sys.executable, "-m"], plan, "--eval-every", "8", "--eval-batches", "3", "--json")


@pytest.fixture(scope="module")
def by_deepspeed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    plan = plan_tiny(
        tmp_path_factory.mktemp("deepspeed"),
        "zero3",
        world_size=2,
        config=TIED,
        checkpointing=ActivationCheckpointing.FULL,
    )
    head = [BIN / "deepspeed", "--num_gpus", "2", "--master_port", str(free_port()), "--module"]
    return train(head, plan)


@pytest.fixture(scope="module")
def by_accelerate(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("accelerate")
    plan = plan_tiny(folder, "zero2", world_size=2, precision=Precision.BF16)
    ports = ["--main_process_port", str(free_port())]
    return train([BIN / "accelerate", "launch", "--config_file", folder / "accelerate.yaml", *ports, "-m"], plan)


@pytest.fixture(scope="module")
def ddp_by_accelerate(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Another way of starting than for DeepSpeed plans; one rank too few would be refused."""
    folder = tmp_path_factory.mktemp("ddp_by_accelerate")
    plan = plan_tiny(folder, "ddp", world_size=2)
    ports = ["--main_process_port", str(free_port())]
    return train([BIN / "accelerate", "launch", "--config_file", folder / "accelerate.yaml", *ports, "-m"], plan)


@pytest.fixture(params=["by_torchrun", "by_python", "by_deepspeed", "by_accelerate", "ddp_by_accelerate"])
def finished(request: pytest.FixtureRequest) -> Finished:
    run: Finished = request.getfixturevalue(request.param)
    return run


def test_every_launcher_trains(finished: Finished) -> None:
    summary = finished.summary
    assert [record["step"] for record in finished.steps] == list(range(1, STEPS + 1))
    assert summary.steps == STEPS
    # ln 288 = 5.66 nats is what a model knows that has learnt nothing.
    assert 5.4 < summary.first_loss < 6.0
    assert summary.final_loss < 0.8 * summary.first_loss


def test_every_launcher_leaves_a_model_that_opens_and_has_learnt(finished: Finished) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(finished.out / "final")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(finished.out / "final")
    text = Path(json.__file__).read_text()  # part of the corpus
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"][:64]])
    with torch.no_grad():
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert loss < 5.0
    assert list(finished.out.glob(".*")) == []


def test_learning_rate_is_the_same_whatever_the_world_size(finished: Finished) -> None:
    # accelerate #2708: a schedule stepped once per process ends after 1 / world size of the run.
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-2)
    scheduler = transformers.get_cosine_schedule_with_warmup(optimizer, 2, STEPS)
    for record in finished.steps:
        assert record["lr"] == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_peak_memory_is_metered_and_stands_beside_the_prediction(finished: Finished) -> None:
    summary = finished.summary
    assert summary.measured is not None
    assert summary.measured_peak_bytes == summary.measured.peak_bytes == finished.steps[-1]["peak_allocated_bytes"]
    assert summary.metered_steps == 3
    phases = [phase.phase.value for phase in summary.measured.phases]
    assert {"initialise", "forward", "backward", "optimizer_step"} <= set(phases)
    # What must be there after three steps: weights, both moments of AdamW, in the formats of the plan.
    assert summary.measured_peak_bytes > summary.predicted.phases[0].causes.parameters
    assert summary.measured_over_predicted == pytest.approx(summary.measured_peak_bytes / summary.predicted_peak_bytes)


def test_a_run_is_recorded_once_whatever_the_number_of_ranks(finished: Finished) -> None:
    (record,) = read_runs(finished.out.with_name(RECORDS))
    summary = finished.summary
    assert (record.ranks, record.strategy) == (summary.world_size, summary.strategy)
    assert record.predicted_allocated_bytes == summary.predicted_peak_bytes
    assert record.measured_allocated_bytes == summary.measured_peak_bytes
    assert (record.measured_step_s, record.num_timed_steps) == (summary.step_time_s, STEPS - summary.metered_steps)


def test_two_ranks_and_one_see_the_same_samples_and_losses(by_torchrun: Finished, by_python: Finished) -> None:
    for two, one in zip(by_torchrun.metrics, by_python.metrics, strict=True):
        for name in {"loss", "eval_loss", "grad_norm"} & two.keys():
            assert two[name] == pytest.approx(one[name], rel=1e-5)
    evaluations = [record for record in by_python.metrics if "eval_loss" in record]
    assert [record["step"] for record in evaluations] == [8, STEPS]
    # Three global batches of eight samples with 63 targets each.
    assert [record["eval_tokens"] for record in evaluations] == [3 * 8 * 63] * 2


def test_stdout_has_the_results_alone(by_torchrun: Finished, by_python: Finished) -> None:
    lines = by_torchrun.stdout.splitlines()
    assert lines == by_torchrun.summary.lines()
    assert json.loads(by_python.stdout) == json.loads((by_python.out / "summary.json").read_text())


def test_tied_weights_are_stored_once_under_zero3(by_deepspeed: Finished) -> None:
    import safetensors.torch

    stored = safetensors.torch.load_file(by_deepspeed.out / "final" / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert (
        sum(tensor.numel() for tensor in stored.values())
        == 288 * 32 + 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64 + 64) + 32
    )


def test_bf16_run_exports_bf16(by_accelerate: Finished) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(by_accelerate.out / "final")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_plan_for_another_world_size_is_refused_once(launcher: str, tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path, "ddp", world_size=1)
    heads = {
        "torchrun": [*TORCHRUN, "2", "-m"],
        "deepspeed": [BIN / "deepspeed", "--num_gpus", "2", "--master_port", str(free_port()), "--module"],
    }
    done = start([*heads[launcher], "scaling.train", "--plan", plan, "--out", tmp_path / "run", *FLAGS])
    assert done.returncode == {"torchrun": 1, "deepspeed": 2}[launcher]  # torchrun has no other code for a failed rank
    assert done.stderr.count("error: the plan is for gpus=1, but world_size=2 processes were started") == 1
    assert "scaling/train.py" not in done.stderr  # no traceback of ours
    assert not (tmp_path / "run").exists()


def test_a_diverged_run_ends_without_a_model(tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path, "ddp", world_size=1)
    flags = ["--steps", "6", "--learning-rate", "1e30", "--schedule", "constant"]
    command = [sys.executable, "-m", "scaling.train", "--plan", plan, "--out", tmp_path / "run", *flags]
    done: subprocess.CompletedProcess[str] = start(command)
    assert done.returncode == 2
    assert "the update was not made and no model was saved: lower the learning rate" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "final").exists()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line


def test_a_full_disk_ends_every_rank_with_one_line(tmp_path: Path) -> None:
    plan = plan_tiny(tmp_path, "ddp", world_size=2)
    command = [*TORCHRUN, "2", "-m", "scaling.train", "--plan", plan, "--out", tmp_path / "run", "--steps", "30"]
    # No file above 4 KiB: some sixteen records. train_config.json, which names folders, is a quarter of that.
    limited = ["bash", "-c", 'ulimit -S -f 4; exec "$@"', "bash", *command]
    done = start([str(part) for part in limited], timeout_s=120)
    assert done.returncode == 1  # torchrun's
    assert done.stderr.count("error: cannot write") == 1
    assert "metrics.jsonl: File too large (" in done.stderr
    assert "scaling/train.py" not in done.stderr
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["metrics.jsonl", "train_config.json"]
