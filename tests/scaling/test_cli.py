"""The command line: bad input is one line and exit code 2, planning imports no framework, results go to stdout."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scaling import cli
from tests.scaling.launching import run_cli as run

GOOD = ["plan", "llama-demo", "--gpu", "cpu", "--gpus", "2", "--seq-len", "128", "--global-batch-size", "8"]


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
        (changed(gpu_memory_gib="1e308"), "--gpu-memory-gib 1e+308: must be a number above zero (and at most"),
        (changed(global_batch_size=str(10**24)), "is more than 2147483648"),
        (changed(seq_len="1"), "seq_len=1 leaves no token to predict"),
        (["plan", "~nobody-of-that-name/x", *GOOD[2:]], "~nobody-of-that-name/x"),
        (changed(gpu="T4"), "precision=bf16, but T4 has no bf16 arithmetic"),
        (changed(gpu="GB300"), "the usable memory of GB300 is not known yet"),
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


def test_a_fixed_micro_batch_that_does_not_fit_is_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--gpus", "2", "--gpu", "RTX4090", "--seq-len", "4096", "--global-batch-size", "64"]
    fixed = ["--micro-batch-size", "8", "--offload-optimizer", "none"]
    assert run(monkeypatch, ["plan", "llama-3.1-8b", *flags, *fixed]) == 3
    assert capsys.readouterr().err.startswith("error: no plan fits 23.65 GiB a GPU at safety 0.9")


H100 = ["plan", "llama-3.1-8b", "--gpu", "H100-80GB-SXM"]


def test_nothing_fits_says_what_would(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*H100, "--gpus", "1", "--seq-len", "4096", "--global-batch-size", "8", "--offload-optimizer", "none"]
    assert run(monkeypatch, words) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second, *suggestions = captured.err.splitlines()
    assert first.startswith("error: no plan fits 79.10 GiB a GPU at safety 0.9; the closest is ")
    assert second == "What would fit:"
    assert any(line.startswith("  --offload-optimizer cpu: needs ") for line in suggestions)
    assert all(line.startswith("  --") for line in suggestions)


@pytest.mark.parametrize(
    "words",
    [
        ["--gpus", "2", "--seq-len", "4096", "--global-batch-size", "64", "--offload-optimizer", "none"],
        ["--gpus", "6", "--seq-len", "65536", "--global-batch-size", "6", "--strategy", "ddp"],
    ],
)
def test_what_would_fit_does_when_it_is_typed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", "llama-3.1-8b", "--gpu", "RTX4090", *words]
    assert run(monkeypatch, asked) == 3
    suggestions = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  --")]
    assert suggestions
    for suggestion in suggestions:
        flags = shlex.split(suggestion.partition(": needs ")[0])
        # A flag given twice: the last one counts.
        assert run(monkeypatch, [*asked, *flags]) == 0, flags
        capsys.readouterr()


def test_what_if_tells_what_would_be_faster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*H100, "--gpus", "8", "--seq-len", "4096", "--global-batch-size", "64", "--strategy", "zero3", "--what-if"]
    assert run(monkeypatch, words) == 0
    told = capsys.readouterr().out.partition("What would make it faster")[2]
    assert "--gpus 16: needs " in told


@pytest.mark.parametrize(
    ("words", "headline"),
    [
        (["--gpus", "8", "--global-batch-size", "8", "--longest-seq-len"], "Longest sequence that fits: "),
        (["--gpus", "8", "--seq-len", "4096", "--best-global-batch-size"], "Smallest global batch within 2.5 % of"),
        (["--gpus", "8", "--seq-len", "512", "--global-batch-size", "8", "--largest-model"], "Largest llama preset"),
        (["--seq-len", "4096", "--global-batch-size", "8", "--smallest-cluster"], "Fewest H100-80GB-SXM that fit: "),
    ],
)
def test_questions_turned_round_are_answered_and_planned(
    words: list[str], headline: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [*H100, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(headline)
    assert lines[2].startswith("Plan: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "8", "--global-batch-size", "8"], "--seq-len is missing; give it, or ask for it with --longest"),
        (["--gpus", "8", "--seq-len", "8"], "--global-batch-size is missing"),
        (["--seq-len", "8", "--longest-seq-len", "--global-batch-size", "8"], "leave one of them out"),
        (["--gpus", "8", "--smallest-cluster", "--seq-len", "8", "--global-batch-size", "8"], "what --gpus 8 gives"),
        (["--longest-seq-len", "--largest-model", "--global-batch-size", "8"], "are two questions"),
        (["--gpus", "8", "--seq-len", "8", "--global-batch-size", "8", "--safety", "1.5"], "safety=1.5 must be from 0"),
        (
            [
                "--gpus",
                "8",
                "--seq-len",
                "8",
                "--global-batch-size",
                "8",
                "--strategy",
                "ddp",
                "--no-reshard-after-forward",
            ],
            "reshard_after_forward=False has no meaning under strategy ddp",
        ),
    ],
)
def test_questions_that_contradict_themselves_are_refused(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [*H100, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_out_offers_only_what_the_trainer_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = changed(precision="bf16-pure", out=str(tmp_path / "plan"))
    assert run(monkeypatch, [*words, "--json"]) == 0
    decision = json.loads(capsys.readouterr().out)
    offered = {each["plan"]["strategy"] for each in decision["by_strategy"]}
    assert offered == {"ddp", "fsdp2"}  # DeepSpeed keeps fp32 masters beside 16-bit weights
    assert run(monkeypatch, changed(optimizer="adafactor", strategy="zero2", out=str(tmp_path / "other"))) == 2
    assert "optimizer=adafactor cannot be trained under zero2 yet" in capsys.readouterr().err


T5 = ["plan", "t5-large", "--gpus", "8", "--gpu", "A100-80GB-SXM", "--seq-len", "512", "--global-batch-size", "64"]


def test_a_model_that_the_trainer_does_not_train_is_planned_with_a_note_and_not_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, T5) == 0
    assert (
        "Note: our trainer does not run this plan: model t5-large is made for task=seq2seq-lm"
        in capsys.readouterr().out
    )
    assert run(monkeypatch, [*T5, "--out", str(tmp_path / "plan")]) == 2
    error = capsys.readouterr().err
    assert "task=seq2seq-lm" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "plan").exists()


def test_a_picture_of_another_type_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = changed(plot=str(tmp_path / "x.gif"), out=str(tmp_path / "plan"))
    assert run(monkeypatch, words) == 2
    assert "x.gif: its ending must be one of .png, .svg, .pdf" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_names_in_any_case_and_overridden_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, changed(gpu="gb300", gpu_memory_gib="280")) == 0
    assert "2 x GB300 (280.00 GiB each)" in capsys.readouterr().out


def test_a_cpu_plan_that_nobody_asked_for_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("strategies.detect._local_gpus", list)
    assert run(monkeypatch, changed(gpu="auto")) == 0
    assert "no CUDA device here: planning for CPU ranks" in caplog.text


def test_a_local_model_is_stored_with_its_whole_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "a [" / "bold] name"  # together a closing tag of rich's markup
    folder.mkdir(parents=True)
    preset = Path(__file__).parents[2] / "configs" / "models" / "llama-demo.json"
    (folder / "config.json").write_text(preset.read_text())
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, ["plan", "a [/bold] name", *GOOD[2:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == str(folder)
    assert run(monkeypatch, ["plan", "a [/bold] name", *GOOD[2:], "--out", str(folder / "plan")]) == 0


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


def test_estimate_answers_cases_in_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = {
        "id": 1,
        "model": "llama-demo",
        "cluster": {"gpu": "cpu", "gpus": 2, "gpu_memory_gib": 1},
        "job": {"seq_len": 64, "global_batch_size": 4},
        "plan": {"strategy": "zero2", "micro_batch_size": 1},
    }
    lines = [json.dumps(good), "no json", "", json.dumps(good | {"id": 2})]
    (tmp_path / "cases.jsonl").write_text("\n".join(lines))
    cli.app(["estimate", "--cases", str(tmp_path / "cases.jsonl"), "--json"], standalone_mode=False)
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["id"] for answer in answers] == [1, None, 2]
    assert answers[0]["peak_allocated_gib"] == answers[2]["peak_allocated_gib"] > 0


def test_estimate_of_one_plan_equals_its_case(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "llama-demo", "--gpu", "cpu", "--gpus", "2", "--seq-len", "64", "--strategy", "zero2"]
    cli.app([*words, "--gpu-memory-gib", "1", "--json"], standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    assert answer["plan"]["strategy"] == "zero2"
    assert answer["fits"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["estimate"], "give a model and --seq-len, or --cases FILE"),
        (["estimate", "llama-demo", "--cases", "x.jsonl"], "the cases name their models"),
        (["estimate", "--cases", "no/such.jsonl"], "cannot read no/such.jsonl"),
        (
            ["estimate", "llama-demo", "--seq-len", "8", "--gpu", "T4", "--gpus", "2", "--level", "measured"],
            "--gpu cpu",
        ),
    ],
)
def test_estimate_refuses(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "--foo"], "no such option: --foo"),
        ([*GOOD[:2], "--seq-len", "long"], "invalid value for '--seq-len': 'long' is not a valid int"),
        (["plan"], "missing argument 'MODEL'; see scaling plan --help"),
        (["nosuch"], "no such command 'nosuch'; see scaling --help"),
        ([*GOOD, "--strategy", "zero4"], "'zero4' is not one of 'ddp'"),
        (["checkpoint", "verify"], "missing argument"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.lower().startswith("error: ")
    assert message.lower() in captured.err.lower()
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["checkpoint"]])
def test_no_words_at_all_print_the_help(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, words) == 2
    captured = capsys.readouterr()
    assert "Usage:" in captured.out + captured.err
    assert "error" not in captured.err


def test_help_ends_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, ["plan", "--help"]) == 0
    assert "--seq-len" in capsys.readouterr().out
