from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaling.calibrate import calibrate
from scaling.calibrate.collective_times import CPU_SIZES
from scaling.calibrate.engine_costs import split, step_cost
from scaling.calibrate.report import lines
from scaling.calibrate.run import MAX_RANKS, over_ranks
from scaling.calibrate.timing import FEWEST_REPEATS, Stopwatch
from scaling.cli import app
from strategies.errors import CalibrationError
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, StrategyName
from strategies.time.calibration import (
    CollectiveKind,
    CollectiveTime,
    calibration_path,
    mismatch,
    read_calibration,
)
from tests.strategies.time.calibrations import cpu_calibration

PLAN = shlex.split("plan llama-demo --gpu cpu --gpus 2 --seq-len 64 --global-batch-size 8 --precision fp32")


def collectives(watch: Stopwatch) -> tuple[CollectiveTime, ...]:
    from scaling.calibrate.collective_times import collective_times

    return collective_times(watch)


@pytest.mark.distributed
def test_two_ranks_time_every_collective() -> None:
    first, second = over_ranks(collectives, ranks=2)
    assert first == second, "every rank knows the slowest one's time"
    assert [(each.kind, each.num_bytes) for each in first] == [
        (kind, size) for kind in CollectiveKind for size in CPU_SIZES
    ]
    for kind in CollectiveKind:
        small, _, large = [each.seconds for each in first if each.kind is kind]
        # 4096 times the bytes take longer; no link of one machine moves 1 TB/s, and no gloo message takes 1 s.
        assert small < large < 10
        assert small < 1
        assert CPU_SIZES[-1] / large < 1e12


def test_one_rank_alone_has_no_collectives() -> None:
    assert over_ranks(collectives, ranks=1) == ((),)


@pytest.mark.distributed
@pytest.mark.slow
def test_a_calibration_without_engines_is_plausible(tmp_path: Path) -> None:
    found = calibrate(ranks=2, folder=tmp_path, engines=False)
    assert mismatch(found, device="cpu") is None
    assert found.ranks == 2
    assert found.seconds > 0
    # From a slow core to a fast socket: 1 GFLOP/s to 10 TFLOP/s, 0.1 to 1000 GB/s, 0.1 us to 1 ms an operator.
    assert all(1e9 < each.flops_per_s < 1e13 for each in found.products)
    assert all(
        1e8 < rate < 1e12 for rate in [found.copy_bytes_per_s, *(each.bytes_per_s for each in found.elementwise)]
    )
    assert 1e-7 < found.operator_s < 1e-3
    # AdamW moves 28 bytes a parameter, of at most 4 TB/s.
    assert 1e6 < found.adam_elements_per_s < 4e12 / 28
    assert found.host_adam_elements_per_s == pytest.approx(2 * found.adam_elements_per_s)
    assert found.disk_write_bytes_per_s > 1e6
    assert list(tmp_path.iterdir()) == [], "the file that was written to time the disk is gone"
    none, _, full = (each.s_per_block for each in found.model)
    assert [each.activation_checkpointing for each in found.model] == list(ActivationCheckpointing)
    # A block's forward and backward in Python: more than ten operators, and the forward runs again under full.
    assert 10 * 1e-7 < none < full
    assert found.engines == ()


@pytest.mark.distributed
@pytest.mark.deepspeed
@pytest.mark.slow
def test_the_readmes_command_measures_every_engine_and_plans_use_it() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    command = next(line for line in readme.splitlines() if line.startswith("scaling calibrate"))
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    assert f"Wrote {calibration_path('cpu')}" in result.output
    found = read_calibration(calibration_path("cpu"))
    kinds = {(each.strategy, each.reshard_after_forward, each.sync_each_batch) for each in found.engines}
    of_fsdp2 = {(StrategyName.FSDP2, reshards, syncs) for reshards in (True, False) for syncs in (True, False)}
    assert kinds == {(strategy, True, True) for strategy in PYTORCH_STRATEGIES} | of_fsdp2
    costs = {
        each.strategy: each.micro_batch_s_per_unit
        for each in found.engines
        if each.activation_checkpointing is ActivationCheckpointing.NONE
        and each.reshard_after_forward
        and each.sync_each_batch
    }
    # Stage 3 fetches and releases every module's weights from Python; DDP does nothing until the last micro batch.
    assert costs[StrategyName.ZERO3] > costs[StrategyName.DDP]
    planned = CliRunner().invoke(app, PLAN)
    assert "measured on this machine" in planned.output


@pytest.fixture
def measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, without what it measures."""
    monkeypatch.setattr("scaling.calibrate.calibrate", lambda **_: cpu_calibration())


@pytest.mark.usefixtures("measured_at_once")
def test_the_command_writes_into_the_data_folder_and_plans_say_so() -> None:
    before = CliRunner().invoke(app, PLAN)
    result = CliRunner().invoke(app, ["calibrate"])
    assert result.exit_code == 0, result.output
    assert f"Wrote {calibration_path('cpu')} in 40 s; plan and estimate use it for device cpu" in result.output
    after = CliRunner().invoke(app, PLAN)
    assert before.exit_code == after.exit_code == 0
    assert "not known for cpu; run `scaling calibrate` on it" in before.output
    assert "on 2026-11-29 with 2 ranks by scaling calibrate" in after.output


@pytest.mark.usefixtures("measured_at_once")
def test_a_file_of_ones_own_is_written_and_not_used(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    result = CliRunner().invoke(app, ["calibrate", "--out", str(path)])
    assert f"Wrote {path} in 40 s; it is used where it lies in your data folder" in result.output
    assert read_calibration(path) == cpu_calibration()
    assert not calibration_path("cpu").exists()


@pytest.mark.usefixtures("measured_at_once")
def test_json_is_the_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["calibrate", "--json", "--out", str(tmp_path / "machine.json")])
    assert result.stdout == (tmp_path / "machine.json").read_text()


@pytest.mark.parametrize("ranks", [0, MAX_RANKS + 1])
def test_ranks_that_cannot_be_started_are_refused(ranks: int, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=f"ranks={ranks}, but this machine runs at most 64 CPU ranks"):
        calibrate(ranks=ranks, folder=tmp_path)


def test_a_folder_that_cannot_be_written_is_refused_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["calibrate", "--out", str(tmp_path / "file" / "c.json")])
    assert isinstance(result.exception, CalibrationError)
    assert "give a writable file with --out" in str(result.exception)


def test_the_report_names_every_rate_and_engine() -> None:
    text = "\n".join(lines(cpu_calibration()))
    assert "2 ranks at work" in text
    assert "products fp32: 40 / 80 GFLOP/s, small to large" in text
    assert "memory: 20.0 GB/s a rank; an operator: 4.0 us" in text
    assert "all-gather: 200 us, 1.75 GB/s" in text
    assert "AdamW: 1300 million parameters/s a rank, 2600 on the host's CPUs" in text
    assert "zero3: a micro batch 1.0 ms, 1100 us a module and 4.0 ns a parameter, a step 2.0 ms, 100 us a " in text
    assert "fsdp2, weights kept: a micro batch 1.0 ms, 5000 us a block and 2.0 ns a parameter" in text


def test_steps_of_one_and_of_four_micro_batches_tell_their_costs_apart() -> None:
    # 3 ms a step and 2 ms a micro batch.
    cost = step_cost(5e-3, 11e-3)
    assert (cost.micro_batch_s, cost.step_s) == pytest.approx((2e-3, 3e-3))


def test_costs_are_never_negative_and_miss_both_steps_alike() -> None:
    cost = step_cost(4e-3, 24e-3)
    assert cost.step_s == 0
    assert cost.micro_batch_s / 4e-3 == pytest.approx(2 - 4 * cost.micro_batch_s / 24e-3)
    assert step_cost(5e-3, 4e-3).micro_batch_s == 0


PARTS, PARAMS = (39, 111, 57), (4e5, 1.2e6, 7e6)


@pytest.mark.parametrize(("fixed", "part", "param"), [(3e-3, 1e-4, 1e-9), (0.0, 1e-4, 0.0), (2e-3, 0.0, 3e-9)])
def test_three_models_tell_the_costs_of_a_step_of_a_tensor_and_of_a_parameter_apart(
    fixed: float, part: float, param: float
) -> None:
    thin, deep, wide = (fixed + part * parts + param * params for parts, params in zip(PARTS, PARAMS, strict=True))
    found = split((thin, deep, wide), parts=PARTS, num_params=PARAMS)
    assert (found.fixed_s, found.s_per_part, found.s_per_param) == pytest.approx(
        (fixed, part, param), rel=1e-6, abs=1e-12
    )


def test_without_the_deep_model_all_is_the_cost_of_parts_and_parameters() -> None:
    found = split((1e-4 * 39 + 1e-9 * 4e5, None, 1e-4 * 57 + 1e-9 * 7e6), parts=PARTS, num_params=PARAMS)
    assert (found.fixed_s, found.s_per_part, found.s_per_param) == pytest.approx((0.0, 1e-4, 1e-9), rel=1e-6, abs=1e-12)


def test_a_deep_model_that_seems_faster_than_a_thin_one_leaves_no_cost_below_zero() -> None:
    found = split((5e-3, 4e-3, 20e-3), parts=PARTS, num_params=PARAMS)
    assert found.s_per_part == 0
    assert found.fixed_s + found.s_per_param * PARAMS[0] == pytest.approx(5e-3)
    assert found.fixed_s + found.s_per_param * PARAMS[2] == pytest.approx(20e-3)
    nothing = split((0.0, 1e-3, 0.0), parts=PARTS, num_params=PARAMS)
    assert (nothing.fixed_s, nothing.s_per_part, nothing.s_per_param) == (0.0, 0.0, 0.0)


def test_a_short_time_is_repeated_as_often_as_asked_until_time_is_up() -> None:
    import time

    import torch

    watch = partial(Stopwatch, device=torch.device("cpu"), rank=0, num_ranks=1)
    calls: list[int] = []
    watch(hurry_at=time.monotonic() + 60).seconds(lambda: calls.append(1), repeats=5, warm_up=0)
    assert len(calls) == 5
    watch(hurry_at=time.monotonic() - 1).seconds(lambda: calls.append(1), repeats=5, warm_up=0)
    assert len(calls) == 5 + FEWEST_REPEATS
