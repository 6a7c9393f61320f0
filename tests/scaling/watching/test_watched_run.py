"""One run with everything switched on, read as a user reads it; and the words of docs/training.md."""

from __future__ import annotations

import gzip
import json
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from scaling.train import main
from scaling.watching.records import EvaluationRecord, LayerGradient, LayerRecord, StepRecord
from tests.scaling.decisions import plan_tiny

DOCUMENT = Path(__file__).parents[3] / "docs" / "training.md"
NUM_STEPS = 4
PARTS = ("data_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s", "other_time_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run has left."""

    folder: Path
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    layers: list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("watched")
    plan = plan_tiny(folder / "plan", "ddp", world_size=1)
    flags = [
        "--plan",
        plan,
        "--out",
        folder / "run",
        "--steps",
        NUM_STEPS,
        "--eval-every",
        2,
        "--lr-scale",
        "lm_head.*=3",
    ]
    watched = ["--loggers", "tensorboard", "--layer-stats-every", 2, "--profile-steps", "2:3", "--cache-dir", folder]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_DATA_HOME", str(folder))  # no calibration
        assert main([str(flag) for flag in (*flags, *watched)]) == 0
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return Run(
        folder=folder / "run",
        steps=[line for line in lines if "loss" in line],
        evaluations=[line for line in lines if "eval_loss" in line],
        layers=[line for line in lines if "layers" in line],
    )


pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def test_parts_of_a_step_add_up_to_its_time(run: Run) -> None:
    assert len(run.steps) == NUM_STEPS
    for step in run.steps:
        assert sum(step[part] for part in PARTS) == pytest.approx(step["step_time_s"], rel=1e-9)
        assert all(step[part] > 0 for part in PARTS)
        assert step["slowest_data_time_s"] == step["data_time_s"]  # the only rank


def test_every_step_has_what_one_rank_on_a_cpu_can_tell(run: Run) -> None:
    for step in run.steps:
        assert step["peak_allocated_bytes"] > 0
        assert step["peak_reserved_bytes"] is None
        assert step["mfu"] is None
        assert step["lr_groups"] == pytest.approx([step["lr"], 3 * step["lr"], step["lr"]])
        assert step["grad_norm_clipped"] == pytest.approx(min(step["grad_norm"], 1.0), rel=1e-5)


def test_layers_are_looked_at_when_asked_and_add_up(run: Run) -> None:
    assert [line["step"] for line in run.layers] == [2, 4]
    for line in run.layers:
        total = math.sqrt(sum(layer["grad_norm"] ** 2 for layer in line["layers"].values()))
        assert total == pytest.approx(run.steps[line["step"] - 1]["grad_norm"], rel=1e-5)


def test_tensorboard_shows_what_the_file_says(run: Run) -> None:
    read = EventAccumulator(str(run.folder / "tensorboard"))
    read.Reload()
    for name in ("loss", "grad_norm", "step_time_s"):
        shown = [(event.step, event.value) for event in read.Scalars(f"train/{name}")]
        assert shown == [(step["step"], pytest.approx(step[name], rel=1e-6)) for step in run.steps]
    assert [event.step for event in read.Scalars("eval/loss")] == [2, 4]
    assert [event.step for event in read.Scalars("layers/model.layers.1/grad_max")] == [2, 4]


def test_the_profile_holds_the_steps_asked_for(run: Run) -> None:
    with gzip.open(run.folder / "profile" / "rank-0.pt.trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    updates = [event for event in events if event.get("name", "").startswith("Optimizer.step#")]
    assert len(updates) == 2  # torch's own mark of an update, one a step
    assert any(event.get("name") == "aten::mm" for event in events)


def section(title: str) -> str:
    text = DOCUMENT.read_text()
    return text.split(f"\n## {title}\n", maxsplit=1)[1].split("\n## ", maxsplit=1)[0]


def test_documented_names_are_those_of_a_step() -> None:
    rows = [line.split("|")[1] for line in section("Watching a run").splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(field.name for field in fields(StepRecord))


@pytest.mark.parametrize("kind", [EvaluationRecord, LayerRecord, LayerGradient])
def test_names_of_other_records_are_documented(kind: type) -> None:
    text = section("Watching a run")
    for field in fields(kind):
        assert f"`{field.name}`" in text, field.name
