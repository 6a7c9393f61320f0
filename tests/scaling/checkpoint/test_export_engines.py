"""Models of sharding engines, exported while they are live and from their checkpoints, against the live weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from typer.testing import CliRunner

from benchmarks.parity_models import Demo, planner, training
from scaling.checkpoint.checkpoints import Checkpoints
from scaling.checkpoint.manifest import TrainingState
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.snapshot import RunFacts
from scaling.cli import app
from scaling.export import export_engine, shell_of
from scaling.local_ranks import run_ranks
from scaling.loop import train_step
from scaling.models import DTYPES
from scaling.parity.ranks import make_engine
from scaling.parity.variants import VARIANTS
from strategies.job import Job, Precision
from strategies.serialize import to_json
from strategies.trained import ALL_LINEAR, Lora
from tests.scaling.decisions import TINY_LLAMA

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

State = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    way: str
    tied: bool = False
    precision: Precision = Precision.BF16
    lora: Lora | None = None

    @property
    def name(self) -> str:
        tied, lora = "tied" if self.tied else "untied", "-lora" if self.lora else ""
        return f"{self.way}-{tied}-{self.precision.value}{lora}"


CASES = [
    *(Case(way=way, tied=tied) for way in ("zero3", "fsdp2") for tied in (True, False)),
    Case(way="fsdp2", tied=True, precision=Precision.FP32),
    Case(way="zero3", lora=Lora(rank=2, target_modules=(ALL_LINEAR,))),
]


def run_case(case: Case, folder: Path, device: torch.device) -> State:
    """Train a step; save a checkpoint and the live model; return the live weights."""
    config = folder / case.name / "config.json"
    demo = Demo(name=case.name, config=str(config))
    job = Job(seq_len=32, global_batch_size=4, precision=case.precision, lora=case.lora)
    decision = planner(demo, job, num_ranks=2)(replace(VARIANTS[case.way], micro_batch_size=1))
    engine = make_engine(demo.model(decision), decision, config=training(steps=2, learning_rate=0.1), device=device)
    engine.set_learning_rate(0.1)
    train_step(engine, demo.data(decision).micro_batches(0, rank=engine.rank, world_size=2))
    documents = {"plan.json": to_json(decision), "train_config.json": json.dumps({"tokenizer": "bytes"})}
    facts = RunFacts(strategy=case.way, seed=0, identity={}, documents=documents)
    saved = Checkpoints(folder / case.name / "checkpoints", facts, meeting=Meeting(timeout_s=60))
    saved.save(engine, TrainingState(step=1, num_samples_seen=4))
    model: Any = engine.model
    shell = shell_of(model.config, dtype=DTYPES[case.precision], job=job)
    export_engine(engine, shell, None, folder=folder / case.name / "live", max_shard_bytes=20_000)
    weights = {name: tensor.detach().clone() for name, tensor in engine.gathered_parameters()}
    engine.close()
    return weights


def run_all(folder: Path, device: torch.device) -> dict[str, State]:
    weights = {case.name: run_case(case, folder, device) for case in CASES}
    dist.barrier()
    return weights


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, State]]:
    folder = tmp_path_factory.mktemp("export")
    for case in CASES:
        (folder / case.name).mkdir()
        settings = TINY_LLAMA | {"tie_word_embeddings": case.tied}
        (folder / case.name / "config.json").write_text(json.dumps(settings))
    return folder, run_ranks(partial(run_all, folder), world_size=2, timeout_s=120)[0]


def opened(folder: Path) -> Any:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(report.values()), report
    return model


def export(folder: Path, case: Case, *more: str) -> Any:
    out = folder / case.name / f"offline{'-'.join(more)}"
    result = CliRunner().invoke(app, ["checkpoint", "export", str(folder / case.name), "--out", str(out), *more])
    assert result.exit_code == 0, result.output
    return opened(out)


@pytest.mark.parametrize("case", [case for case in CASES if not case.lora], ids=lambda case: case.name)
def test_the_folder_opens_as_the_live_model(case: Case, live: tuple[Path, dict[str, State]]) -> None:
    folder, weights = live
    for model in (opened(folder / case.name / "live"), export(folder, case)):
        found = dict(model.named_parameters())
        assert found.keys() == weights[case.name].keys()  # a tied one once
        for name, tensor in weights[case.name].items():
            assert found[name].dtype == DTYPES[case.precision]
            assert torch.equal(found[name], tensor), name
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == case.tied


def test_masters_are_exported_with_all_their_digits(live: tuple[Path, dict[str, State]]) -> None:
    folder, weights = live
    case = CASES[0]
    found = dict(export(folder, case, "--dtype", "fp32").named_parameters())
    for name, tensor in weights[case.name].items():
        assert found[name].dtype is torch.float32
        assert torch.equal(found[name].bfloat16(), tensor), name
    assert any(not torch.equal(found[name].bfloat16().float(), found[name]) for name in found)


def test_adapters_are_merged_alike_live_and_from_the_checkpoint(live: tuple[Path, dict[str, State]]) -> None:
    folder, weights = live
    case = CASES[-1]
    one, other = opened(folder / case.name / "live").state_dict(), export(folder, case).state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    layer = "model.layers.0.mlp.up_proj"
    parts = {
        part: weights[case.name][f"{layer}.{part}.weight"]
        for part in ("base_layer", "lora_A.default", "lora_B.default")
    }
    assert case.lora is not None
    scaling = case.lora.alpha / case.lora.rank
    # PEFT 0.17, tuners/lora/layer.py, get_delta_weight.
    change = parts["lora_B.default"].float() @ parts["lora_A.default"].float() * scaling
    assert torch.equal(one[f"{layer}.weight"], parts["base_layer"] + change.bfloat16())
    assert change.abs().max() > 0
