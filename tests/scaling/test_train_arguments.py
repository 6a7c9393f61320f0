"""Flags, assignments, run file and defaults: which wins, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scaling.errors import ConfigError
from scaling.schedule import ScheduleName
from scaling.train_arguments import parse_arguments
from scaling.train_config import Init, TrainConfig

NEEDED = ["--plan", "plan.json", "--out", "run", "--steps", "10"]


def test_flags_win_over_assignments_over_run_file_over_defaults(tmp_path: Path) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text("learning_rate: 1e-4\nwarmup-steps: 1\nseed: 1\nplan: other.json\n")
    arguments = parse_arguments(
        [*NEEDED, "--config", str(run_file), "--set", "seed=2", "--set", "warmup_steps=2", "--warmup-steps", "3"]
    )
    config = arguments.config
    assert (config.warmup_steps, config.seed, config.learning_rate) == (3, 2, 1e-4)
    assert (config.plan, config.weight_decay) == (Path("plan.json"), 0.01)


def test_every_field_is_a_flag_in_kebab_case() -> None:
    arguments = parse_arguments(
        [*NEEDED, "--schedule", "linear", "--init", "random", "--eval-every", "5", "--overwrite", "--json"]
    )
    assert arguments.json
    config = arguments.config
    assert (config.schedule, config.init, config.eval_every) == (ScheduleName.LINEAR, Init.RANDOM, 5)
    assert config.overwrite


@pytest.mark.parametrize("flag", ["--local_rank=3", "--local-rank=3"])
def test_local_rank_of_the_deepspeed_launcher_is_ignored(flag: str) -> None:
    assert parse_arguments([flag, *NEEDED]) == parse_arguments(NEEDED)


def test_help_shows_choices_and_kinds_of_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    text = capsys.readouterr().out
    for part in ("--schedule {linear,cosine,constant,", "--init {auto,random,pretrained}", "JSONL, CSV or Parquet"):
        assert part in " ".join(text.split())


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arguments(
            ["--plan", "p", "--steps", "many", "--learning-rate", "-1", "--set", "lerning_rate=1", "--set", "seed"]
        )
    message = str(caught.value)
    for part in (
        "unknown setting 'lerning_rate'; did you mean learning_rate?",
        "--set seed has no '='",
        "out is missing; give it with --out",
        "steps='many'",
        "learning_rate=-1.0 must be above zero",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lerning-rate", "1"], "unknown argument '--lerning-rate'; did you mean --learning-rate?"),
        (["--seed"], "argument --seed: expected one argument"),
        (["--learning-rate", "nan"], "learning_rate=nan must be above zero"),
        (["--weight-decay", "inf"], "weight_decay=inf must not be negative or infinite"),
        (["--steps", "0"], "steps=0 must be above zero"),
        (["--steps", "1.5"], "steps='1.5' must be a whole number"),
        (["--learning-rate", "fast"], "learning_rate='fast' must be a number"),
        (["--set", "overwrite=perhaps"], "overwrite='perhaps' must be true or false"),
        (["--seed", "-1"], "seed=-1 must not be negative or infinite"),
        (["--seed", "18446744073709551615"], "seed=18446744073709551615 must be at most 9223372036854775807"),
        (["--data", ""], "data is empty; give a value, or leave it out"),
        (["--out", ""], "out is empty"),
        (["--set", "tokenizer="], "tokenizer is empty"),
        (["--warmup-steps", "11"], "warmup_steps=11 is more than steps=10"),
        (["--eval-fraction", "1"], "eval_fraction=1.0 must lie between 0 and 1"),
        (["--schedule", "stair"], "'linear', 'cosine', 'constant'"),
        (["--init", "zero"], "'auto', 'random' or 'pretrained'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arguments([*NEEDED, *flags])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- steps\n", "is not a list of `name: value` lines"),
        ("steps: [", "is not YAML"),
        ("steps: true\n", "steps=True must not be true or false"),
        ("plan: 7\n", "plan=7"),
        ("sede: 7\n", "did you mean seed?"),
    ],
)
def test_a_wrong_run_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse_arguments(["--config", str(run_file), "--out", "run"])
    assert message in str(caught.value)


def test_a_run_file_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read config="):
        parse_arguments([*NEEDED, "--config", str(tmp_path / "none.yaml")])


def test_negative_steps_are_one_problem() -> None:
    with pytest.raises(ConfigError, match=r"^steps=-1 must be above zero$"):
        parse_arguments([*NEEDED, "--steps", "-1"])
    with pytest.raises(ConfigError, match=r"^steps=-1 must be above zero$"):
        parse_arguments([*NEEDED, "--steps", "-1", "--warmup-steps", "3"])


def test_the_largest_seed_leaves_room_for_the_ranks() -> None:
    seed = parse_arguments([*NEEDED, "--seed", str(2**63 - 1)]).config.seed
    generator = torch.Generator()
    assert generator.manual_seed(seed + 1 + 2**20).initial_seed() == seed + 1 + 2**20


def test_config_checks_sizes_however_it_is_made() -> None:
    with pytest.raises(ConfigError, match="steps=-1 must be above zero"):
        TrainConfig(plan=Path("p"), out=Path("o"), steps=-1)
