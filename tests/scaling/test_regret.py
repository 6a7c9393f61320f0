"""The benchmark that runs every plan: that it runs them, and what it makes of the seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import regret
from benchmarks.regret_report import BudgetRow, ModelResult, PlanRow, Summary, store
from strategies.job import Job, Precision
from strategies.plan import PYTORCH_STRATEGIES
from strategies.search import FixedParts, candidates
from strategies.time.calibration import calibration_path, write_calibration
from tests.scaling.decisions import TINY_LLAMA
from tests.strategies.time.calibrations import cpu_calibration


@pytest.fixture
def problem(tmp_path: Path) -> regret.Problem:
    """A model that trains in milliseconds, planned with a calibration."""
    write_calibration(cpu_calibration(), calibration_path("cpu"))
    config = tmp_path / "tiny.json"
    config.write_text(json.dumps(TINY_LLAMA))
    return regret.Problem(regret.Setting(model=str(config), seq_len=16, global_batch_size=4))


def test_every_plan_of_the_search_is_run_and_has_a_prediction(problem: regret.Problem) -> None:
    job = Job(seq_len=16, global_batch_size=4, precision=Precision.FP32)
    cluster = regret.cluster_with(2**30)
    assert set(problem.needs) >= set(candidates(problem.spec, cluster=cluster, job=job, fixed=FixedParts()))
    assert {plan.strategy for plan in problem.needs} == set(PYTORCH_STRATEGIES)
    assert min(problem.predicted.values()) > 0


def test_budgets_hold_all_half_and_few_of_the_plans_and_the_choice_fits(problem: regret.Problem) -> None:
    fitting = [sum(needed <= budget for needed in problem.needs.values()) for budget in problem.budgets]
    assert fitting[0] == len(problem.needs)
    assert fitting[0] > fitting[1] > fitting[2] > 0
    for budget, plan in problem.chosen.items():
        assert problem.needs[plan] <= budget


def test_plans_far_from_every_best_are_run_once(problem: regret.Problem) -> None:
    slow, *others = problem.needs
    found = {plan: [1.0] for plan in others} | {slow: [1.31]}
    contenders = problem._contenders(found)
    assert set(others) <= set(contenders)
    assert (slow in contenders) == (slow in problem.chosen.values())


@pytest.mark.distributed
@pytest.mark.deepspeed
@pytest.mark.slow
def test_two_ranks_run_a_plan_of_every_engine(problem: regret.Problem) -> None:
    plans = {plan.strategy: plan for plan in problem.plans if plan.gradient_accumulation_steps == 2}
    assert set(plans) == set(PYTORCH_STRATEGIES)
    seconds = regret.run_plans([problem._decision(plan) for plan in plans.values()], 1)
    assert len(seconds) == len(plans)
    assert all(0 < each < 60 for each in seconds)


def test_the_ratio_is_the_best_time_over_the_chosen_plans(tmp_path: Path) -> None:
    plans = tuple(
        PlanRow(label=name, needed_bytes=2**20, predicted_s=0.1, measured_s=seconds, rounds_s=(seconds,))
        for name, seconds in (("ddp", 0.20), ("zero1", 0.19))
    )
    row = BudgetRow(
        model="tiny", budget_bytes=2**20, num_fitting=2, chosen="ddp", chosen_s=0.20, best="zero1", best_s=0.19
    )
    assert row.ratio == pytest.approx(0.95)
    result = ModelResult(model="tiny", job=Job(seq_len=16, global_batch_size=4), plans=plans, budgets=(row,))
    summary = Summary(median_ratio=0.95, worst_ratio=0.95, rounds=1, steps=1, calibration_s=40.0, seconds=60)
    assert not summary.is_within_limits
    assert replace(summary, median_ratio=0.98).is_within_limits
    store([result], summary, folder=tmp_path)
    assert json.loads((tmp_path / "regret.json").read_text())["models"][0]["ratios"] == [0.95]
    assert "| tiny | 1.00 MiB | 2 | ddp | 200.0 | zero1 | 190.0 | 0.950 |" in (tmp_path / "regret.md").read_text()
    assert (tmp_path / "regret.png").read_bytes().startswith(b"\x89PNG")
