"""Records, the metrics file and the summary."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from scaling.errors import TrainingError
from scaling.meter import Measurement, Span
from scaling.watching.records import StepRecord
from scaling.watching.reporter import Reporter
from scaling.watching.run_records import record_training
from scaling.watching.summary import Summary, summarise
from scaling.watching.utilisation import Utilisation
from strategies.estimate import CauseBytes, Estimate, Level, MemoryProfile, Phase, PhaseBytes
from strategies.learning.run_store import read_runs
from strategies.serialize import from_json, to_json
from tests.scaling.decisions import toy_decision
from tests.scaling.full_disk import file_size_limit
from tests.scaling.watching.made_up import MIB, evaluation, step
from tests.strategies.learning.made_up import base_record


def metered(*, steps: int) -> Measurement:
    causes = CauseBytes(parameters=60 * MIB)
    spans = [
        Span(
            phase=Phase.OPTIMIZER_STEP,
            step=number,
            device=causes,
            host=CauseBytes(),
            device_end=causes,
            host_end=CauseBytes(),
        )
        for number in range(steps)
    ]
    return Measurement(rank=0, world_size=2, spans=tuple(spans))


def summary(*, metered_steps: int | None) -> Summary:
    profile = MemoryProfile(phases=(PhaseBytes(phase=Phase.BACKWARD, causes=CauseBytes(activations=50 * MIB)),))
    decision = replace(
        toy_decision("zero2", world_size=2, accumulation=2),
        estimate=Estimate(level=Level.INSTANT, memory=profile, peak_reserved_bytes=50 * MIB),
    )
    peak = 60 * MIB if metered_steps else None
    seconds = (9.0, 9.0, 1.0, 2.0, 4.0)
    records = [step(number + 1, seconds=value, peak=peak) for number, value in enumerate(seconds)]
    return summarise(
        [*records, evaluation(5)],
        decision=decision,
        initial_weights="random weights",
        measurement=metered(steps=metered_steps) if metered_steps else None,
        train_time_s=25.0,
        final=Path("run/final"),
        data_hash="abc",
        utilisation=Utilisation(flops_per_token=2.0, peak_flops_per_s=1e3, predicted_step_s=1.5),
    )


def test_metrics_file_has_one_json_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Reporter(path, num_steps=2) as reporter:
        reporter.add(step(1, seconds=2.0))
        # On disk before the next step: a run that is killed leaves what it has done.
        assert len(path.read_text().splitlines()) == 1
        reporter.add(evaluation(1))
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first.keys() == {field.name for field in fields(StepRecord)}
    assert second == {"step": 1, "eval_loss": 2.5, "eval_tokens": 64, "eval_time_s": 0.5, "eval_metrics": {}}


def test_speed_is_the_median_of_steps_that_were_not_metered() -> None:
    assert summary(metered_steps=2).step_time_s == 2.0
    assert summary(metered_steps=None).step_time_s == 4.0


def test_measured_peak_stands_beside_the_predicted_one() -> None:
    result = summary(metered_steps=2)
    assert (result.predicted_peak_bytes, result.measured_peak_bytes) == (50 * MIB, 60 * MIB)
    assert result.measured_over_predicted == pytest.approx(1.2)
    assert "predicted 50.00 MiB, measured 60.00 MiB over 2 steps: measured / predicted = 1.200" in result.lines()[3]


def test_step_time_stands_beside_the_predicted_one() -> None:
    result = summary(metered_steps=2)
    assert result.lines()[2] == "step: predicted 1.5 s, measured 2 s (median); MFU 40.0%"


def test_nothing_metered_is_said() -> None:
    result = summary(metered_steps=None)
    assert result.measured_over_predicted is None
    assert result.lines()[3] == "peak memory per rank: predicted 50.00 MiB, not measured"


def test_summary_survives_json() -> None:
    result = summary(metered_steps=2)
    assert from_json(Summary, to_json(result), source="a test") == result


def test_losses_are_those_of_the_first_and_last_step() -> None:
    result = summary(metered_steps=2)
    assert (result.steps, result.first_loss, result.final_loss, result.final_eval_loss) == (5, 4.0, 0.0, 2.5)


def test_metrics_that_cannot_be_written_are_told_with_the_free_space(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Reporter(path, num_steps=2) as reporter:
        reporter.add(step(1, seconds=1.0))
        size = path.stat().st_size
        with (
            file_size_limit(size + 5),
            pytest.raises(TrainingError, match=r"cannot write .*metrics.jsonl: .* free ther"),
        ):
            reporter.add(step(2, seconds=1.0))


def test_closing_after_a_failed_write_does_not_fail_again() -> None:
    # /dev/full answers every write with "no space left".
    with (
        pytest.raises(TrainingError, match="cannot write /dev/full: No space left on device"),
        Reporter(Path("/dev/full"), num_steps=1) as reporter,
    ):
        reporter.add(step(1, seconds=1.0))


def test_a_prediction_of_nothing_has_no_ratio() -> None:
    nothing = MemoryProfile(phases=(PhaseBytes(phase=Phase.BACKWARD, causes=CauseBytes()),))
    decision = replace(
        toy_decision("ddp", world_size=1, accumulation=1),
        estimate=Estimate(level=Level.INSTANT, memory=nothing, peak_reserved_bytes=0),
    )
    outcome = summarise(
        [step(1, seconds=1.0)],
        decision=decision,
        initial_weights="random weights",
        measurement=None,
        train_time_s=1.0,
        final=Path("final"),
        data_hash="",
        utilisation=None,
    )
    assert (outcome.predicted_peak_bytes, outcome.measured_over_predicted) == (0, None)


@pytest.mark.parametrize(
    ("predicted_peak", "metered_steps", "peaks", "timed"),
    [
        (Phase.OPTIMIZER_STEP, 2, 60 * MIB, 3),  # seconds 1, 2, 4 are left
        (Phase.OPTIMIZER_STEP, 1, None, 4),  # without optimizer states
        (Phase.BACKWARD, 2, None, 3),  # a phase that was not metered
        (Phase.OPTIMIZER_STEP, 3, 60 * MIB, None),  # two steps are left
    ],
)
def test_a_finished_run_is_recorded_as_far_as_it_says_something(
    predicted_peak: Phase,
    metered_steps: int,
    peaks: int | None,
    timed: int | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MEMORY_SCALING_RECORDS", str(tmp_path / "runs.jsonl"))
    profile = MemoryProfile(phases=(PhaseBytes(phase=predicted_peak, causes=CauseBytes(activations=50 * MIB)),))
    outcome = replace(summary(metered_steps=metered_steps), predicted=profile)
    record_training(base_record(), outcome)
    (found,) = read_runs(tmp_path / "runs.jsonl")
    assert found.measured_allocated_bytes == peaks
    assert found.num_timed_steps == (timed or 0)
    assert found.measured_step_s == (None if timed is None else 2.0 if timed == 3 else 3.0)
