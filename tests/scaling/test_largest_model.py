"""The largest model in a budget: the family, the search's edge, and what counts as proof."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import largest_model
from benchmarks.largest_model_report import PLAIN, PLANNED, STEPS, Contest, Outcome, Size, ratio_of
from strategies.load_model import load_model_spec, resolve_model
from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.units import MIB

SMALL = Size(num_params=10, width=64, blocks=1)
FALLING = tuple(6.0 - step for step in range(STEPS))


def outcome(measured_bytes: int, losses: tuple[float, ...] = FALLING) -> Outcome:
    return Outcome(
        size=SMALL,
        plan="",
        predicted_peak_bytes=1,
        measured_peak_bytes=measured_bytes,
        predicted_host_bytes=None,
        losses=losses,
        step_time_s=1.0,
    )


def contest(largest: Outcome, next_up: Outcome) -> Contest:
    return Contest(contender=PLAIN, budget_bytes=100, largest=largest, next_up=next_up)


def test_the_family_holds_llama_demo_itself() -> None:
    demo = resolve_model("llama-demo").config
    assert largest_model.shaped(256, 6) == demo
    family = largest_model.sizes()
    assert family == sorted(family)
    assert Size(num_params=load_model_spec("llama-demo").num_params, width=256, blocks=6) in family


def test_the_search_ends_where_the_next_size_does_not_fit() -> None:
    family = [size for size in largest_model.sizes() if size.width <= 320]
    place = largest_model.largest_place(PLAIN, family, budget_bytes=32 * MIB)
    assert largest_model.fits(PLAIN, family[place], budget_bytes=32 * MIB)
    assert not any(largest_model.fits(PLAIN, size, budget_bytes=32 * MIB) for size in family[place + 1 :])


def test_plain_ddp_is_plain(tmp_path: Path) -> None:
    size = largest_model.sizes()[0]
    decision = largest_model.decision_for(PLAIN, size, tmp_path / "model", budget_bytes=32 * MIB)
    assert decision.plan.strategy is StrategyName.DDP
    assert decision.plan.activation_checkpointing is ActivationCheckpointing.NONE
    assert decision.job.loss.value == "standard"
    assert json.loads((tmp_path / "model" / "config.json").read_text())["hidden_size"] == size.width


def test_the_plan_for_the_next_size_is_the_one_that_needs_least(tmp_path: Path) -> None:
    size = next(each for each in largest_model.sizes() if (each.width, each.blocks) == (256, 6))
    least = largest_model.smallest_plan(PLANNED, size, tmp_path / "model").estimate.peak_allocated_bytes
    assert not largest_model.fits(PLANNED, size, budget_bytes=least - 1)


@pytest.mark.parametrize(
    ("largest", "next_up", "is_proven"),
    [
        (outcome(100), outcome(101), True),
        (outcome(101), outcome(102), False),  # over the budget
        (outcome(90), outcome(95), False),  # the next size up would have done too
        (outcome(90, (6.0,) * STEPS), outcome(101), False),  # has learnt nothing
        (outcome(90, (*FALLING[:-1], float("nan"))), outcome(101), False),
        (outcome(90, FALLING[:2]), outcome(101), False),  # ended early
    ],
)
def test_what_counts_as_proof(largest: Outcome, next_up: Outcome, is_proven: bool) -> None:
    assert contest(largest, next_up).is_proven is is_proven


def test_the_ratio_is_of_parameters() -> None:
    plain = contest(outcome(1), outcome(1))
    large = replace(outcome(1), size=replace(SMALL, num_params=90))
    planned = replace(plain, contender=PLANNED, largest=large)
    assert ratio_of([plain, planned]) == 9.0


def test_the_stored_proof_holds() -> None:
    stored = json.loads((largest_model.RESULTS / "largest_model.json").read_text())
    assert stored["ratio"] >= largest_model.TARGET_RATIO
    for each in stored["contests"]:
        assert each["largest"]["measured_peak_bytes"] <= each["budget_bytes"]
        assert each["next_up"]["measured_peak_bytes"] > each["budget_bytes"]
        log = (largest_model.LOGS / f"{each['contender'].lower().replace(' ', '-')}.txt").read_text()
        assert f"step {STEPS}: loss {each['largest']['losses'][-1]:.4f}" in log


@pytest.mark.distributed
@pytest.mark.slow
def test_a_size_is_trained_on_real_ranks(tmp_path: Path) -> None:
    size = largest_model.sizes()[0]
    decision = largest_model.decision_for(PLAIN, size, tmp_path / "model", budget_bytes=32 * MIB)
    found = largest_model.run(decision, size, log=tmp_path / "log.txt")
    assert found.has_learnt
    assert found.measured_peak_bytes == pytest.approx(found.predicted_peak_bytes, rel=0.04)  # memory_accuracy's limit
    log = (tmp_path / "log.txt").read_text()
    assert f"{size.num_params:,} parameters" in log
    assert str(tmp_path) not in log
