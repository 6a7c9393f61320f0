"""Flags that say what is trained: one line and exit code 2 for what the model does not have, counts for what it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strategies.decision import Decision
from strategies.serialize import read_json
from strategies.trained import Lora
from tests.scaling.launching import run_cli as run

ESTIMATE = ["estimate", "llama-2-7b", "--gpu", "A100-80GB-SXM", "--gpus", "8", "--seq-len", "2048"]
PLAN = ["plan", "llama-2-7b", *ESTIMATE[2:], "--global-batch-size", "64"]
QV = ["--lora-rank", "8", "--lora-targets", "q_proj,v_proj"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*ESTIMATE, "--lora-targets", "q_proj"], "give their --lora-rank too"),
        ([*ESTIMATE, "--lora-rank", "8", "--lora-targets", "c_attn"], "have no linear layer of that name"),
        ([*ESTIMATE, "--lora-rank", "8", "--freeze", "lm_head"], "leave one of them out"),
        ([*ESTIMATE, "--freeze", "embed"], "has no such parameter"),
        ([*ESTIMATE, "--freeze", "mlp"], "no closed form where single parts are frozen"),
        ([*PLAN, "--lora-rank", "8", "--lora-targets", "o_proj"], "no closed form where adapters are trained on"),
    ],
)
def test_what_the_model_does_not_have_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert run(monkeypatch, words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not captured.out


def test_an_estimate_tells_how_much_is_trained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PEFT prints ``trainable params: 4,194,304 || all params: 6,742,609,920`` for these adapters."""
    assert run(monkeypatch, [*ESTIMATE, "--strategy", "zero3", *QV]) == 0
    assert "6,742,609,920 parameters, 4,194,304 of them trained" in capsys.readouterr().out


def test_frozen_parts_need_less(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    peaks = []
    for parts in ([], ["--freeze", "embed_tokens"], ["--freeze", "*", "--freeze", "!lm_head"]):
        assert run(monkeypatch, [*ESTIMATE, "--json", *parts]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["peak_allocated_gib"])
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)


def test_a_plan_keeps_what_is_trained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [*PLAN, "--strategy", "zero2", "--loss", "standard", *QV, "--out", str(tmp_path / "plan")]
    assert run(monkeypatch, words) == 0
    capsys.readouterr()
    decision = read_json(Decision, tmp_path / "plan" / "plan.json")
    assert decision.job.lora == Lora(rank=8, target_modules=("q_proj", "v_proj"))
