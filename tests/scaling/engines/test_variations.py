"""Engines and settings that the planner does not search, on two ranks, against plain PyTorch on the whole batch."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from benchmarks.parity_models import MODELS, Demo, training
from scaling.parity.certificate import largest_relative_difference
from strategies.decision import Decision
from strategies.emit.files import PLAN_FILE, write_plan
from strategies.job import OptimizerName, Precision
from strategies.serialize import read_json
from tests.scaling.decisions import plan_tiny
from tests.scaling.engines.variations import EVERY, FSDP2, VARIATIONS, WHOLE, Outcomes, outcomes
from tests.scaling.launching import BIN, succeed

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

SGD = [name for name in VARIATIONS if "sgd" in name]
SIXTEEN_BITS = [name for name in VARIATIONS if "bf16" in name or "fp16" in name]
RULES = [name for name, each in VARIATIONS.items() if each.optimizer not in (OptimizerName.ADAMW, OptimizerName.SGD)]
EXACT = [name for name in VARIATIONS if name not in (*SIXTEEN_BITS, *SGD, *RULES)]


@pytest.fixture(scope="module", params=MODELS[:2], ids=["llama", "gpt2-tied"])
def runs(request: pytest.FixtureRequest) -> Outcomes:
    demo: Demo = request.param
    return outcomes(demo, [*EXACT, *SIXTEEN_BITS, *RULES], config=training(steps=8, learning_rate=3e-3))


@pytest.mark.parametrize("name", EXACT)
def test_fp32_reproduces_plain_pytorch(runs: Outcomes, name: str) -> None:
    found = runs.found[name]
    assert largest_relative_difference(found.losses, runs.plain.losses) < 1e-6
    assert largest_relative_difference(found.norms, runs.plain.norms) < 1e-6
    # AdamW amplifies the order of summation where a gradient is near zero.
    assert found.parameter_difference < 2e-4


@pytest.mark.parametrize("name", SIXTEEN_BITS)
def test_16_bits_follow_fp32(runs: Outcomes, name: str) -> None:
    # bf16 has 8 bits of precision: 2**-8 = 0.4 % a rounding; the loss is a mean over hundreds of tokens. fp16 has 11.
    limit = 0.01 / 8 if "fp16" in name else 0.01
    assert largest_relative_difference(runs.found[name].losses, runs.plain.losses) < limit


def test_autocast_means_the_same_without_and_with_shards(runs: Outcomes) -> None:
    # fp32 weights and fp32 reductions everywhere, so only the order of sums differs.
    for precision, name in product(("bf16", "fp16"), ("zero1", "zero2", "zero3")):
        ddp = runs.found[f"ddp-{precision}-autocast"]
        found = runs.found[f"{name}-{precision}-autocast"]
        assert largest_relative_difference(found.losses, ddp.losses) < 1e-4, name
        assert largest_relative_difference(found.norms[:1], ddp.norms[:1]) < 1e-5, name


@pytest.mark.parametrize("name", [name for name in RULES if not name.startswith("ddp")])
def test_update_rules_of_libraries_mean_the_same_without_and_with_shards(runs: Outcomes, name: str) -> None:
    # What the rules do to one tensor is tested by their formulas (test_optimizer.py). The sign that Lion takes of a sum
    # near zero depends on its order; 8-bit moments have 8 bits, and a shard's blocks begin elsewhere.
    rule = VARIATIONS[name].optimizer
    limit = 1e-4 if rule is OptimizerName.LION else 2.0**-8
    assert largest_relative_difference(runs.found[name].losses, runs.found[f"ddp-{rule}"].losses) < limit


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", ["full", "selective", "every-second"])
def test_checkpointing_changes_no_bit(runs: Outcomes, name: str, kind: str) -> None:
    # What is computed twice is the same both times, so gradients and all that follows from them are equal.
    found, without = runs.found[f"{name}-{kind}"], runs.found[name]
    assert (found.losses, found.norms) == (without.losses, without.norms)
    assert found.fingerprint == without.fingerprint


@pytest.mark.parametrize("name", WHOLE)
def test_sizes_of_buckets_change_nothing(runs: Outcomes, name: str) -> None:
    # DeepSpeed #5294, #8061: smaller than a tensor, as planned, and larger than the model.
    for elements in (1000, 10**8):
        found, planned = runs.found[f"{name}-buckets-of-{elements}"], runs.found[name]
        assert largest_relative_difference(found.losses, planned.losses) < 1e-6
        assert largest_relative_difference(found.norms, planned.norms) < 1e-6


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
