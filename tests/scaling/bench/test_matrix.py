"""Which cells there are, and which of them are refused with why."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.bench.axes import numbers_of, words_of
from scaling.bench.matrix import cells_of_plans, planned_cells
from scaling.plan_file import read_plan
from scaling.run_folder import locked_folder
from strategies.cluster import Cluster
from strategies.emit.commands import LauncherName
from strategies.errors import PlanError
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.units import MIB
from tests.scaling.bench.results import RUNNING, axes, planned, question
from tests.scaling.decisions import plan_tiny
from tests.scaling.launching import run_cli


def test_every_combination_is_a_cell_with_its_own_file() -> None:
    cells = planned(
        axes(
            strategies=(StrategyName.DDP, StrategyName.FSDP2),
            micro_batch_sizes=(1, 2),
            checkpointing=tuple(ActivationCheckpointing),
        )
    )
    assert len({each.cell.name for each in cells}) == len({each.cell.key for each in cells}) == 2 * 2 * 3
    assert [each.refused for each in cells] == [""] * 12
    assert {each.cell.tokens_per_step for each in cells} == {2 * 64, 2 * 2 * 64}


def test_what_no_strategy_can_do_is_a_refused_cell_beside_the_others() -> None:
    ddp, fsdp2 = planned(
        axes(strategies=(StrategyName.DDP, StrategyName.ZERO2), offload_optimizer=(OffloadDevice.CPU,))
    )
    assert "offload_optimizer=cpu" in ddp.refused
    assert (ddp.decision, fsdp2.refused) == (None, "")


def test_what_does_not_fit_by_its_prediction_is_refused_unless_asked_for() -> None:
    small = Cluster(gpu=replace(question().cluster.gpu, memory_bytes=64 * MIB), gpus=2, gpus_per_node=2)
    asked = replace(question(), cluster=small)
    # 4,615,424 parameters in fp32 with gradients and two moments are 70.4 MiB.
    [refused] = planned_cells(axes(), asked, RUNNING)
    assert "does not fit by its prediction" in refused.refused
    assert "over the 64.00 MiB of GPU memory" in refused.refused
    [run] = planned_cells(axes(), asked, RUNNING, runs_too_large=True)
    assert run.refused == ""
    assert run.cell.name == refused.cell.name


def test_the_key_is_of_what_is_trained_and_not_of_the_machine() -> None:
    [here], [there] = planned(), planned(running=replace(RUNNING, environment=replace(RUNNING.environment, device="x")))
    assert here.cell.key == there.cell.key
    assert here.cell.name != there.cell.name


def test_plan_files_are_cells_too(tmp_path: Path) -> None:
    decision = read_plan(plan_tiny(tmp_path, "fsdp2", world_size=2))
    torchrun, deepspeed = cells_of_plans([("mine", decision)], (LauncherName.TORCHRUN, LauncherName.DEEPSPEED), RUNNING)
    assert (torchrun.cell.choice.plan_name, torchrun.cell.choice.strategy) == ("mine", StrategyName.FSDP2)
    assert torchrun.cell.key != deepspeed.cell.key
    assert torchrun.cell.tokens_per_step == decision.job.tokens_per_step


@pytest.mark.parametrize("text", ["", "0", "1,two", "-1", "1.5", "²", "9" * 5000])
def test_lists_of_numbers_are_checked(text: str) -> None:
    with pytest.raises(PlanError, match=r"--seq-len .* must be whole numbers above zero"):
        numbers_of(text, flag="--seq-len")


def test_lists_of_words_are_checked() -> None:
    assert words_of(StrategyName, "zero2, ddp,zero2", flag="--strategy") == (StrategyName.ZERO2, StrategyName.DDP)
    with pytest.raises(PlanError, match="--strategy 'zero9' is unknown; give one or more of ddp, zero1"):
        words_of(StrategyName, "ddp,zero9", flag="--strategy")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a model, or --plan FILE in its place"),
        (["llama-demo", "--plan", "plan.json"], "give a model, or --plan FILE in its place"),
        (["--plan", "plan.json", "--precision", "fp32"], "--gpus, --precision beside --plan, which says it already"),
        (["llama-demo", "--gpu", "A100-80GB-SXM"], "plans are run on this machine; give auto or cpu"),
        (["llama-demo", "--launcher", "mpirun"], "--launcher 'mpirun' is unknown"),
        (["llama-demo", "--set", "learning-rat=1"], "did you mean learning_rate?"),
        (["llama-demo", "--set", "warmup_steps=99"], "warmup_steps=99 is more than steps=14"),
        (["llama-demo", "--set", "measure-steps=9"], "--set measure_steps: a bench sets it itself; leave it out"),
        (["llama-demo", "--budget-minutes", "0"], "--budget-minutes 0 must be above zero"),
        (["no-such-model"], "model no-such-model is not known"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    out = tmp_path / "bench"
    assert run_cli(monkeypatch, ["bench", *words, "--gpus", "2", "--out", str(out)]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(told) == 1
    assert message in told[0]
    assert not out.exists()


def test_a_bench_of_which_nothing_runs_says_why_and_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "llama-demo", "--strategy", "ddp", "--gpu-memory-gib", "0.01", "--gpu", "cpu"]
    for pictures in ([], ["--plot", str(tmp_path / "pictures")]):
        assert run_cli(monkeypatch, [*words, "--out", str(tmp_path), *pictures]) == 1
        assert "refused: does not fit by its prediction" in capsys.readouterr().out
    assert run_cli(monkeypatch, [*words, "--out", str(tmp_path), "--csv", str(tmp_path)]) == 2
    assert "refused: does not fit by its prediction" in capsys.readouterr().out


def test_two_benches_in_one_folder_at_once_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "llama-demo", "--strategy", "ddp", "--gpu-memory-gib", "0.01", "--gpu", "cpu"]
    with locked_folder(tmp_path):
        assert run_cli(monkeypatch, [*words, "--out", str(tmp_path)]) == 2
    assert f"out={tmp_path} is in use: process {os.getpid()} on" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
