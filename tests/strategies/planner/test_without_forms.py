"""Plans for a model without closed forms: the simplest that fits, by as few estimates as it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from strategies.errors import NoPlanFitsError, PlanError
from strategies.estimate import CauseBytes, Estimate, Level, MemoryProfile, Phase, PhaseBytes
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.plan import Plan, StrategyName
from strategies.planner.sweep import Question, has_forms
from strategies.planner.without_forms import first_that_fits
from strategies.search import FixedParts
from strategies.units import MIB
from tests.scaling.decisions import cpu_cluster

CLIP = {"model_type": "clip", "architectures": ["CLIPModel"]}
BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}


def question(
    *, memory_bytes: int, why_not: Callable[[Job, Plan], str | None] | None = None, strategy: StrategyName | None = None
) -> Question:
    cluster = cpu_cluster(2)
    cluster = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=memory_bytes))
    return Question(
        spec=load_model_spec(CLIP),
        cluster=cluster,
        job=Job(seq_len=77, global_batch_size=64, precision=Precision.FP32),
        fixed=FixedParts(strategy=strategy),
        safety=0.0,
        why_not=why_not,
    )


class Estimates:
    """A plan needs what its states take, less under ZeRO, and a mebibyte a sample; every estimate is counted."""

    def __init__(self) -> None:
        self.asked: list[Plan] = []

    def __call__(self, plan: Plan) -> Estimate:
        self.asked.append(plan)
        states = 100 if plan.strategy is StrategyName.DDP else 60
        causes = CauseBytes(parameters=states * MIB, activations=plan.micro_batch_size * MIB)
        memory = MemoryProfile(phases=(PhaseBytes(phase=Phase.BACKWARD, causes=causes),))
        return Estimate(level=Level.TRACED, memory=memory, peak_reserved_bytes=memory.peak_bytes)


def test_the_whole_share_is_taken_by_one_estimate_where_it_fits() -> None:
    estimate = Estimates()
    decision = first_that_fits(question(memory_bytes=200 * MIB), model="clip", estimate=estimate)
    assert (decision.plan.strategy, decision.plan.micro_batch_size) == (StrategyName.DDP, 32)
    assert len(estimate.asked) == 1
    assert "not known to be the fastest" in decision.warnings[0]


def test_the_largest_micro_batch_that_fits_is_found() -> None:
    estimate = Estimates()
    decision = first_that_fits(question(memory_bytes=109 * MIB), model="clip", estimate=estimate)
    # 100 + 8 fit in 109 MiB and 100 + 16 do not; shares of 32 samples can be cut into 32, 16, 8, 4, 2 and 1
    assert decision.plan.micro_batch_size == 8
    assert decision.plan.gradient_accumulation_steps == 4
    assert len(estimate.asked) <= 4


def test_a_strategy_with_smaller_states_is_taken_where_the_simpler_one_does_not_fit() -> None:
    decision = first_that_fits(question(memory_bytes=80 * MIB), model="clip", estimate=Estimates())
    assert decision.plan.strategy is StrategyName.ZERO1
    assert decision.plan.micro_batch_size == 16
    assert {rejection.plan.strategy for rejection in decision.rejected} == {StrategyName.DDP}
    assert min(rejection.over_by_bytes for rejection in decision.rejected) == 21 * MIB  # 101 of 80


def test_nothing_fits_says_so() -> None:
    with pytest.raises(NoPlanFitsError):
        first_that_fits(question(memory_bytes=20 * MIB), model="clip", estimate=Estimates())


def test_plans_that_may_not_be_offered_are_not_estimated() -> None:
    def why_not(job: Job, plan: Plan) -> str | None:
        return "no replicas" if plan.strategy is StrategyName.DDP else None

    estimate = Estimates()
    first_that_fits(question(memory_bytes=200 * MIB, why_not=why_not), model="clip", estimate=estimate)
    assert {plan.strategy for plan in estimate.asked} == {StrategyName.ZERO1}
    asked = question(memory_bytes=200 * MIB, why_not=why_not, strategy=StrategyName.DDP)
    with pytest.raises(PlanError, match="no replicas"):
        first_that_fits(asked, model="clip", estimate=estimate)


@pytest.mark.parametrize(
    ("config", "expected"),
    [(CLIP, False), (BERT, False), ({"model_type": "bert"}, True), ({"model_type": "gpt2"}, True)],
)
def test_which_models_have_forms(config: dict[str, object], expected: bool) -> None:
    asked = replace(question(memory_bytes=2**34), spec=load_model_spec(config))
    assert has_forms(asked) is expected
