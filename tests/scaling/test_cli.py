"""The command line: bad input is one line and exit code 2, planning imports no framework, results go to stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scaling import cli

GOOD = ["plan", "llama-demo", "--gpu", "cpu", "--gpus", "2", "--seq-len", "128", "--global-batch-size", "8"]


def run(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> int:
    """Return the exit code of ``scaling words`` run in this process."""
    monkeypatch.setattr(sys, "argv", ["scaling", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def changed(**flags: str) -> list[str]:
    """Return a good command line with some flags replaced or added."""
    words = list(GOOD)
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    return words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "no/such/folder", *GOOD[2:]], "no/such/folder"),
        (["plan", "not-a-preset", *GOOD[2:]], "not-a-preset"),
        (changed(gpu="H100"), "gpu='H100' is not in configs/gpus.csv; closest: H100"),
        (changed(global_batch_size="7"), "global_batch_size=7 does not divide over gpus=2"),
        (changed(global_batch_size="0"), "global_batch_size=0 must be above zero"),
        (changed(seq_len="-5"), "seq_len=-5 must be above zero"),
        (changed(seq_len="5000"), "seq_len=5000 is longer than the 1024 positions"),
        (changed(gpus="0"), "--gpus 0: must be a number above zero"),
        (changed(gpu_memory_gib="nan"), "--gpu-memory-gib nan"),
        (changed(micro_batch_size="3"), "micro_batch_size=3"),
        (changed(gradient_clipping="-1"), "gradient_clipping=-1.0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "plan"
    assert run(monkeypatch, [*words, "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "holds a list, not an object"),
        ('{"model_type": "nosuchnet"}', "nosuchnet"),
        ('{"hidden_size": 4}', "model_type"),
    ],
)
def test_bad_config_files_are_named(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert run(monkeypatch, ["plan", str(path), *GOOD[2:]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_wrong_flag_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, changed(gpus="two")) == 2
    assert run(monkeypatch, changed(strategy="zero4")) == 2


def test_nothing_fits_is_exit_code_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, changed(gpu_memory_gib="0.001")) == 3
    assert "no plan fits" in capsys.readouterr().err


def test_json_is_the_decision_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [*GOOD, "--json"]) == 0
    decision = json.loads(capsys.readouterr().out)
    assert decision["plan"]["strategy"] == "ddp"
    assert decision["cluster"]["gpus"] == 2
    assert decision["num_params"] == 4_615_424  # transformers' own count: tests/strategies/test_model_presets.py


@pytest.mark.slow
def test_planning_imports_no_framework() -> None:
    code = (
        "import sys\nfrom scaling.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([n for n in ('torch', 'transformers', 'numpy', 'deepspeed', 'accelerate') if n in sys.modules])"
    )
    words = ["plan", "llama-3.1-405b", "--gpus", "1024", "--gpu", "H100-80GB-SXM"]
    command = [sys.executable, "-c", code, *words, "--seq-len", "4096", "--global-batch-size", "1024"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "[]"
    assert "405,853,388,800 parameters" in finished.stdout  # the published count of Llama-3.1-405B
