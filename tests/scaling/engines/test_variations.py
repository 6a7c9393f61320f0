"""Engines and settings that the planner does not search, on two ranks, against plain PyTorch on the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.parity_models import MODELS, Demo, training
from scaling.parity.certificate import largest_relative_difference
from strategies.decision import Decision
from strategies.emit.files import PLAN_FILE, write_plan
from strategies.job import Precision
from strategies.serialize import read_json
from tests.scaling.decisions import plan_tiny
from tests.scaling.engines.variations import FSDP2, VARIATIONS, Outcomes, outcomes
from tests.scaling.launching import BIN, succeed

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

SGD = [name for name in VARIATIONS if "sgd" in name]
EXACT = [name for name in VARIATIONS if "bf16" not in name and name not in SGD]
SIXTEEN_BITS = [name for name in VARIATIONS if "bf16" in name]


@pytest.fixture(scope="module", params=MODELS[:2], ids=["llama", "gpt2-tied"])
def runs(request: pytest.FixtureRequest) -> Outcomes:
    demo: Demo = request.param
    return outcomes(demo, [*EXACT, *SIXTEEN_BITS], config=training(steps=8, learning_rate=3e-3))


@pytest.mark.parametrize("name", EXACT)
def test_fp32_reproduces_plain_pytorch(runs: Outcomes, name: str) -> None:
    found = runs.found[name]
    assert largest_relative_difference(found.losses, runs.plain.losses) < 1e-6
    assert largest_relative_difference(found.norms, runs.plain.norms) < 1e-6
    # AdamW amplifies the order of summation where a gradient is near zero.
    assert found.parameter_difference < 2e-4


@pytest.mark.parametrize("name", SIXTEEN_BITS)
def test_16_bits_follow_fp32(runs: Outcomes, name: str) -> None:
    # bf16 has 8 bits of precision: 2**-8 = 0.4 % a rounding; the loss is a mean over hundreds of tokens.
    assert largest_relative_difference(runs.found[name].losses, runs.plain.losses) < 0.01


def test_autocast_means_the_same_without_and_with_shards(runs: Outcomes) -> None:
    # fp32 weights and fp32 reductions everywhere, so only the order of sums differs.
    ddp = runs.found["ddp-bf16-autocast"]
    for name in ("zero1", "zero2", "zero3"):
        found = runs.found[f"{name}-bf16-autocast"]
        assert largest_relative_difference(found.losses, ddp.losses) < 1e-4, name
        assert largest_relative_difference(found.norms[:1], ddp.norms[:1]) < 1e-5, name


def test_training_went_somewhere(runs: Outcomes) -> None:
    # Equal losses of a model that does not move would prove nothing.
    assert all(found.losses[-1] < 0.95 * found.losses[0] for found in runs.found.values())


def test_every_variation_starts_from_the_same_weights(runs: Outcomes) -> None:
    firsts = torch.tensor([found.losses[0] for found in runs.found.values()])
    assert float((firsts - runs.plain.losses[0]).abs().max()) < 0.01 * runs.plain.losses[0]


def test_gradient_descent_ends_at_the_weights_of_plain_pytorch() -> None:
    runs = outcomes(MODELS[1], SGD, config=training(steps=8, learning_rate=0.1))
    assert runs.plain.losses[-1] < 0.95 * runs.plain.losses[0]
    for name, found in runs.found.items():
        assert largest_relative_difference(found.losses, runs.plain.losses) < 1e-6, name
        assert largest_relative_difference(found.norms, runs.plain.norms) < 1e-6, name
        assert found.parameter_difference < 1e-6, name


def test_an_fsdp2_run_is_exported_as_it_was_trained(tmp_path: Path) -> None:
    """The export is opened and compared with the gathered weights before it appears."""
    from transformers import AutoModelForCausalLM

    decision = read_json(Decision, plan_tiny(tmp_path / "ddp", "ddp", world_size=2, precision=Precision.BF16))
    write_plan(FSDP2.of(decision), folder=tmp_path / "plan")
    launcher = [str(BIN / "accelerate"), "launch", "--config_file", str(tmp_path / "plan" / "accelerate.yaml")]
    plan = ["--main_process_port", "0", "-m", "scaling.train", "--plan", str(tmp_path / "plan" / PLAN_FILE)]
    data = ["--data", "builtin:python", "--tokenizer", "bytes", "--steps", "3", "--out", str(tmp_path / "run")]
    succeed([*launcher, *plan, *data])
    exported = next(path.parent for path in (tmp_path / "run").rglob("model.safetensors"))
    assert AutoModelForCausalLM.from_pretrained(exported, dtype="auto").num_parameters() == decision.num_params
