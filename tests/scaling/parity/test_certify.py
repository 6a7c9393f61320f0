"""Strategies on real ranks against plain PyTorch: a part of ``python -m benchmarks.parity``, and what it would find."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from benchmarks.parity import BIT_EQUAL, Case, Result, measure
from benchmarks.parity_models import MODELS, Demo, RaggedSamples, planner, training
from scaling.parity.certify import certify
from scaling.parity.variants import VARIANTS, plan_variants
from strategies.decision import Decision
from strategies.job import Job, OptimizerName, Precision
from strategies.plan import PYTORCH_STRATEGIES
from strategies.search import FixedParts

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
LAYER_TWICE, UNUSED = MODELS[2], MODELS[3]
EXACT = [
    Case(LAYER_TWICE, OptimizerName.SGD, ranks=2, accumulation=3),
    Case(UNUSED, OptimizerName.ADAMW, ranks=2, accumulation=3, names=PYTORCH_STRATEGIES),
]
SAME_BITS = Case(MODELS[0], OptimizerName.ADAMW, ranks=2, accumulation=1, clipping=0.0, names=BIT_EQUAL)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """Llama and GPT-2 themselves are tried in engines/test_variations.py."""
    return measure([*EXACT, SAME_BITS])


@pytest.mark.deepspeed
def test_every_variant_trains_the_model_of_plain_pytorch(results: list[Result]) -> None:
    for case, result in zip(EXACT, results, strict=False):
        assert result.failed == {}
        assert {row.name for row in result.rows} == {each.name for each in case.planned}
        assert {row.name: (row.loss, row.norm, row.parameter) for row in result.rows if not row.alike} == {}, case
        assert {row.accumulation for row in result.rows} == {3}
    assert {row.name for row in results[0].rows} == set(VARIANTS)


@pytest.mark.deepspeed
def test_training_went_somewhere(results: list[Result]) -> None:
    # Equal losses of a model that does not move would prove nothing.
    assert all(result.last_loss < 0.95 * result.first_loss for result in results)


@pytest.mark.deepspeed
def test_ddp_zero1_and_zero2_end_at_the_same_bits_where_each_batch_is_reduced_once(results: list[Result]) -> None:
    assert [(row.name, row.same_bits_as) for row in results[-1].rows] == [(name, "ddp") for name in BIT_EQUAL]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty:
    """Another model where weights stay gathered, none where gradients are whole; else as the demo."""

    demo: Demo

    def model(self, decision: Decision) -> nn.Module:
        model = self.demo.model(decision)
        if not decision.plan.sync_each_batch:
            raise NotImplementedError("not with whole\ngradients")
        if not decision.plan.reshard_after_forward:
            with torch.no_grad():
                next(model.parameters()).add_(1e-3)
        return model

    def data(self, decision: Decision) -> RaggedSamples:
        return self.demo.data(decision)

    def task(self, decision: Decision) -> None:
        return None


def test_a_strategy_that_trains_another_model_or_breaks_is_named() -> None:
    names = ("ddp", "fsdp2-kept", "fsdp2-whole-gradients", "fsdp2")
    job = Job(seq_len=64, global_batch_size=8, precision=Precision.FP32, optimizer=OptimizerName.SGD)
    planned, left_out = plan_variants(names, planner(MODELS[0], job, num_ranks=2), fixed=FixedParts(micro_batch_size=2))
    config = training(steps=3, learning_rate=0.1)
    found = certify(Faulty(demo=MODELS[0]), planned, left_out, config=config)
    assert {row.name: row.alike for row in found.rows} == {"ddp": True, "fsdp2-kept": False, "fsdp2": True}
    assert [(each.name, each.reason) for each in found.failed] == [
        ("fsdp2-whole-gradients", "NotImplementedError: not with whole gradients")
    ]
    assert not found.alike
    assert replace(found, failed=(), rows=found.rows[:1]).alike
