"""The correction of step times, from ratios whose median is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from strategies.cluster import gpu_preset
from strategies.learning.fit import learn
from strategies.learning.learned import TimeErrors, learned_path, write_learned
from strategies.learning.run_record import RunRecord
from strategies.learning.step_correction import correction_from
from strategies.library import plan
from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.time.correction import StepCorrection
from tests.strategies.learning.made_up import base_record, recorded

DDP, ZERO3 = StrategyName.DDP, StrategyName.ZERO3
NONE, FULL = ActivationCheckpointing.NONE, ActivationCheckpointing.FULL


def errors(model: str, *ratios: float, strategy: StrategyName = DDP, checkpointing: str = "none") -> TimeErrors:
    return TimeErrors(
        device="A100",
        machine="",
        calibration="",
        model=model,
        strategy=strategy,
        activation_checkpointing=ActivationCheckpointing(checkpointing),
        num_runs=len(ratios),
        newest="2026-01-01",
        ratios=ratios,
    )


def correction(*found: TimeErrors, model: str = "a", strategy: StrategyName = DDP) -> StepCorrection | None:
    return correction_from(found, model=model, strategy=strategy, activation_checkpointing=NONE)


def test_four_setups_correct_nothing() -> None:
    assert correction(errors("a", 2.0, 2.0, 2.0, 2.0)) is None


def test_a_models_own_runs_move_its_time_by_their_share() -> None:
    """n / (n + 5) for the model's 15 setups; those of the strategy are all of them and add nothing."""
    found = correction(errors("a", *[2.0] * 15))
    assert found is not None
    assert math.log2(found.factor) == pytest.approx(15 / 20)
    assert found.source == "your 15 records on A100, 15 of them of this model"
    assert found.measured is None


def test_many_runs_take_away_the_bias_and_tell_the_range() -> None:
    ratios = [1.5 + 0.01 * (number - 100) / 100 for number in range(201)]
    found = correction(errors("a", *ratios))
    assert found is not None
    assert found.measured is not None
    assert found.factor == pytest.approx(1.5 ** (201 / 206))
    # Ranks ceil(202 * 0.95) = 192 of 201 and its mirror: 91 hundredths of a hundredth from the median.
    assert found.measured.high == pytest.approx(1.5091 / found.factor)
    assert found.measured.low == pytest.approx(1.4909 / found.factor)


def test_two_other_models_say_nothing_and_three_do() -> None:
    two = [errors("a", *[2.0] * 10), errors("b", *[2.0] * 10)]
    found = correction(*two, model="new")
    assert found is not None
    assert found.factor == 1.0
    assert found.source == "your 20 records on A100, none of them of this model"
    found = correction(*two, errors("c", *[2.0] * 30), model="new")
    assert found is not None
    # Three models count as three however many setups they have.
    assert math.log2(found.factor) == pytest.approx(3 / 8)


def test_strategies_without_runs_of_their_own_stay_comparable() -> None:
    """A device that is slower than predicted is so for every strategy, also where one alone is on record."""
    slow = correction(errors("a", *[1.3] * 6))
    other = correction(errors("a", *[1.3] * 6), strategy=ZERO3)
    assert slow is not None
    assert other is not None
    assert slow.factor == other.factor == pytest.approx(1.3 ** (6 / 11))


def test_a_strategy_differs_from_its_model_by_its_own_runs() -> None:
    found = [errors("a", *[1.0] * 25), errors("a", *[2.0] * 20, strategy=ZERO3)]
    plain, slow = (correction(*found, strategy=each) for each in (DDP, ZERO3))
    assert plain is not None
    assert slow is not None
    assert plain.factor == pytest.approx(1.0)  # the median of all 45 is 1
    assert math.log2(slow.factor) == pytest.approx(20 / 25)


def test_runs_count_for_the_rates_and_the_machine_that_they_were_predicted_on() -> None:
    record = base_record(on_gpu=True)
    timed = [timed_run(record, number) for number in range(30)]
    stale = [replace(each, calibration="2020-01-01T00:00:00+00:00") for each in timed]
    asked = {"gpus": 2, "seq_len": 64, "global_batch_size": 8, "strategy": "ddp"}
    plain = plan("llama-demo", gpu=record.device, **asked)
    write_learned(learn(stale)[0], learned_path())
    assert plan("llama-demo", gpu=record.device, **asked).time == plain.time
    write_learned(learn(timed)[0], learned_path())
    found = plan("llama-demo", gpu=record.device, **asked).time
    assert found is not None
    assert plain.time is not None
    assert found.correction is not None
    assert found.correction.factor == pytest.approx(3.0 ** (30 / 35))
    assert found.total_s == pytest.approx(found.correction.factor * plain.time.total_s)
    assert found.mfu == pytest.approx(plain.time.mfu / found.correction.factor)
    other = plan("llama-demo", gpu="H100-80GB-SXM", **asked).time
    assert gpu_preset("H100-80GB-SXM").name != record.device
    assert other is not None
    assert other.correction is None


def test_a_later_record_holds_what_the_formulas_say_and_what_was_told() -> None:
    record = base_record(on_gpu=True)
    write_learned(learn([timed_run(record, number) for number in range(30)])[0], learned_path())
    later = base_record(on_gpu=True)
    assert later.predicted_step_s == pytest.approx(record.predicted_step_s)
    assert later.corrected_step_s == pytest.approx(3.0 ** (30 / 35) * (record.predicted_step_s or 0.0))


def timed_run(record: RunRecord, number: int) -> RunRecord:
    """One of the demo model that took three times as long as predicted."""
    found = recorded(base=record, number=number, step_ratio=3.0)
    return replace(found, num_params=record.num_params, num_layers=number + 1)
